"""gpt-oss: sinks, clamped gates, experts with biases."""

from __future__ import annotations

from core.models.families.row import Family

ROWS: tuple[Family, ...] = ()
