"""Attention and layers with a state, side by side or in turn."""

from __future__ import annotations

from core.models.families.row import Family

ROWS: tuple[Family, ...] = ()
