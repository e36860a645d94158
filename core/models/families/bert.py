"""Encoders: every token sees every token of its sequence."""

from __future__ import annotations

from core.models.families.row import Family

ROWS: tuple[Family, ...] = ()
