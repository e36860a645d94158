"""Bucket bounds that the user gives for histograms of /metrics.

Owns: their checks. Never does: count. Called by: the settings of the server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from core.api.errors import nearest

SERVED: Final = ("time_to_first_token", "inter_token_latency", "request_latency", "request_tokens", "request_params_n")
UNSERVED: Final = {
    "iteration_tokens": "its bounds are those of the engine's own count",
    "request_num_preemptions": "preemptions are counted for all requests together",
    "kv_cache_residency": "its bounds are those of the engine's own count",
}
"""Families of vLLM whose bounds cannot be chosen here, with the reason."""


def histogram_buckets(given: Mapping[str, Any] | None, problems: list[str]) -> dict[str, list[float]]:
    """Return the bounds by what they measure. Sentences about problems are added to `problems`."""
    found: dict[str, list[float]] = {}
    for name, bounds in (given or {}).items():
        shown = f"--custom-histogram-buckets.{name}"
        if name in UNSERVED:
            problems.append(f"{shown}: cannot be chosen: {UNSERVED[name]}; leave it out.")
        elif name not in SERVED:
            problems.append(f"{shown}: is no histogram; expected one of {', '.join(SERVED)}.{nearest(name, SERVED)}")
        elif not _are_bounds(bounds):
            problems.append(f"{shown} {bounds!r}: expected a list of numbers above 0, each larger than the one before.")
        else:
            found[name] = [float(bound) for bound in bounds]
    return found


def _are_bounds(bounds: Any) -> bool:
    if not isinstance(bounds, list) or not bounds:
        return False
    if not all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds):
        return False
    rising = all(low < high for low, high in zip([0, *bounds], bounds, strict=False))
    return rising and math.isfinite(bounds[-1])
