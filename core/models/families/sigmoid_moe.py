"""Experts behind sigmoid routers, and other routers of their own."""

from __future__ import annotations

from core.models.families.row import Family

ROWS: tuple[Family, ...] = ()
