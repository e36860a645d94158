"""Phi, StableLM and StarCoder 2: layer norms, partial rotary, parallel blocks."""

from __future__ import annotations

from core.models.families.row import Family

ROWS: tuple[Family, ...] = ()
