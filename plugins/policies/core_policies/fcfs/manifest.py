"""Manifest of the `fcfs` policy."""

from __future__ import annotations

from core.plugin.manifest_of import manifest_of

CONTRACT = 1

core_spec, core_load = manifest_of(
    "fcfs",
    "first come, first served",
    "core_policies.fcfs.policy:FcfsPolicy",
)
