"""Manifest of the `fair` policy."""

from __future__ import annotations

from core.plugin.manifest_of import manifest_of
from core_policies.fair.arguments import FairArguments

CONTRACT = 1

core_spec, core_load = manifest_of(
    "fair",
    "users take turns by the service that each has had (virtual token counter)",
    "core_policies.fair.policy:FairPolicy",
    arguments=FairArguments,
)
