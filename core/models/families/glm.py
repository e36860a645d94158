"""GLM: neighbouring rotary pairs on a part of each head."""

from __future__ import annotations

from core.models.families.row import Family

ROWS: tuple[Family, ...] = ()
