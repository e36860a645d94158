"""GPT-2 and its time: layer norms, learned positions, plain MLPs."""

from __future__ import annotations

from core.models.families.row import Family

ROWS: tuple[Family, ...] = ()
