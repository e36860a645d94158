"""Manifest of the `priority` policy."""

from __future__ import annotations

from core.plugin.manifest_of import manifest_of

CONTRACT = 1

core_spec, core_load = manifest_of(
    "priority",
    "lower priority numbers first, then by arrival",
    "core_policies.priority.policy:PriorityPolicy",
)
