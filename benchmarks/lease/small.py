"""The sampler, experts, and the small kernels between products.

Owns: their sizes. Called by: stage 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.lease.place import Place
from benchmarks.lease.rows import Row

FILTERS = ("none", "top-p", "top-k", "both")
VOCABULARY = 128256


def sampler(place: Place) -> Iterator[Row]:
    """Drawing a token for each row, with and without filters."""
    for rows in place.pick((1, 64, 256), (2,)):
        for filters in FILTERS:
            seconds = place.seconds_of(draw_of(place, rows, filters))
            yield Row("", f"{rows} rows of {VOCABULARY}, filters: {filters}", seconds * 1e6, "us")


def draw_of(place: Place, rows: int, filters: str) -> Callable[[], object]:
    """Return the call that draws."""
    from core_kernels.triton.kernels import TritonKernels

    device = place.device
    logits = place.random(rows, place.pick(VOCABULARY, 300), dtype=torch.float32) * 3
    which, out = torch.arange(rows, device=device), torch.zeros(rows, dtype=torch.int64, device=device)
    keys = torch.randint(0, 1 << 31, (rows, 5), device=device)
    heat = torch.full((rows,), 0.8, device=device)
    top_k = torch.full((rows,), 20 if filters in ("top-k", "both") else 0, dtype=torch.int64, device=device)
    top_p = torch.full((rows,), 0.95 if filters in ("top-p", "both") else 1.0, dtype=torch.float64, device=device)
    least = torch.full((rows,), -torch.inf, device=device)
    chosen = None if filters == "none" else (top_k, top_p, least)
    kernels = TritonKernels()
    return lambda: kernels.race(logits, which, keys, heat, out, chosen)


def small_kernels(place: Place) -> Iterator[Row]:
    """Norms, gates, and what launching one costs the host."""
    from core_kernels.triton.kernels import TritonKernels

    kernels = TritonKernels()
    hidden, inner = place.pick((4096, 14336), (64, 96))
    weight = torch.ones(hidden, device=place.device)
    for rows in place.pick((1, 64, 2048), (2,)):
        x, residual = place.random(rows, hidden), place.random(rows, hidden)
        out = torch.empty_like(x)
        wide, gated = place.random(rows, 2 * inner), place.random(rows, inner)
        calls: dict[str, Callable[[], object]] = {
            "norm": lambda x=x, out=out: kernels.rms_norm(x, weight, 1e-5, out),
            "add and norm": lambda x=x, r=residual, out=out: kernels.add_rms_norm(x, None, r, weight, 1e-5, out),
            "gate": lambda wide=wide, gated=gated: kernels.gated(wide, "silu", gated),
        }
        for name, call in calls.items():
            yield Row("", f"{name}, {rows} rows", place.seconds_of(call) * 1e6, "us")
            yield Row("", f"{name}, {rows} rows: the host's time", place.host_seconds_of(call) * 1e6, "us")


def experts(place: Place) -> Iterator[Row]:
    """A layer of Qwen3-30B-A3B's experts."""
    from core_kernels.triton.kernels import TritonKernels
    from core_runtime.specs.routing_spec import RoutingSpec
    from core_runtime.weights.experts import Experts
    from core_runtime.weights.formats import Dense

    kernels = TritonKernels()
    count, hidden, inner, top_k = place.pick((128, 2048, 768, 8), (8, 64, 64, 2))
    gate_up = Experts(Dense(place.random(count * 2 * inner, hidden)), count)
    down = Experts(Dense(place.random(count * hidden, inner)), count)
    layer = kernels.grouped_experts(gate_up, down, "silu", precision="none", gated=kernels.gated)
    routing = RoutingSpec(top_k)
    for tokens in place.pick((1, 16, 64, 256, 4096), (1, 40)):
        x = place.random(tokens, hidden)
        logits = place.random(tokens, count, dtype=torch.float32)
        ids = torch.zeros(tokens, top_k, dtype=torch.int64, device=place.device)
        weights = torch.zeros(tokens, top_k, device=place.device)
        out = torch.empty_like(x)

        def route(logits: torch.Tensor = logits, ids: torch.Tensor = ids, weights: torch.Tensor = weights) -> None:
            kernels.route(logits, routing, None, ids, weights)

        yield Row("", f"routing of {tokens} tokens", place.seconds_of(route) * 1e6, "us")
        seconds = place.seconds_of(lambda x=x, i=ids, w=weights, o=out: layer(x, i, w, o))
        used = len(ids.unique())
        share = 2 * used * 3 * inner * hidden / seconds / place.copy_rate
        yield Row("", f"experts of {tokens} tokens, {used} in use", seconds * 1e6, "us", share, "copy rate")
