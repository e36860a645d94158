"""Mamba 1 and 2, alone."""

from __future__ import annotations

from core.models.families.row import Family

ROWS: tuple[Family, ...] = ()
