"""Names of vLLM's metrics that it has hidden, and since when.

Owns: these names. Never does: import anything of metrics, as the configuration reads it. Called by: the rules, the page of
metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

HIDDEN: Mapping[str, tuple[str, tuple[int, int]]] = MappingProxyType(
    {
        "gpu_cache_usage_perc": ("kv_cache_usage_perc", (0, 10)),
        "gpu_prefix_cache_queries": ("prefix_cache_queries", (0, 10)),
        "gpu_prefix_cache_hits": ("prefix_cache_hits", (0, 10)),
        "time_per_output_token_seconds": ("inter_token_latency_seconds", (0, 11)),
    }
)
"""Metrics that vLLM has renamed and hidden: the present name, and the last version with which vLLM brings the old one back."""


def version_of(text: str) -> tuple[int, int]:
    """Return major and minor number of a version such as `0.11` or `0.11.1`. Raises ValueError."""
    found = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})(\.\w+)?", text)
    if found is None:
        raise ValueError(text)
    return int(found[1]), int(found[2])


def hidden_since(version: tuple[int, int]) -> dict[str, list[str]]:
    """Return the hidden names of metrics that vLLM has hidden since a version, by the present name."""
    names: dict[str, list[str]] = {}
    for hidden, (present, last) in HIDDEN.items():
        if version <= last:
            names.setdefault(present, []).append(hidden)
    return names
