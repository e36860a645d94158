"""Division of a model's blocks into stages, which compute a step one after the other. Torch-free.

Owns: which blocks a stage has, from the bytes of weights that each part of the model reads in a step.
Never does: cut a layer (`model_part` does). Called by: the worker of a rank, the configuration (memory plan, costs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from core.api.errors import UserError
from core_runtime.specs.block_parts import mixer_parts
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.module_spec import ModelSpec

Range = tuple[int, int]
"""First block, and the one after the last."""
EVEN: Final = 0.9
FEWEST_EVEN: Final = 8
FEWEST_UNEVEN: Final = 16
"""Sequences that are computed in one step rather than divided among several, where stages take equal times and where they do
not. Each step reads all weights, so with few sequences two steps take twice as long as one. On two cores of a server processor
two stages took 62 ms for a token of 8 sequences of Llama 8B (6 layers, Q4_K_M, 0.95 even) in two steps, and 35 ms for one
sequence; 27 ms and 15 ms with Gemma 3 270M (0.77 even). With 32 sequences of Gemma two steps took 48 ms, one took 53 ms.
"""


def stages_of(spec: ModelSpec, count: int) -> list[Range]:
    """Return the blocks of each stage, so that the slowest stage is as fast as possible.

    A step's time is that of reading its weights. The head counts for the last stage; the embedding counts for nothing,
    because a step reads only the rows of its tokens. Of equally good divisions the one counts whose last stages are
    smallest: rank 0, which also plans and samples, is in the last stage.

    Raises UserError for a model that has too few layers.
    """
    if count == 1:
        return [(0, len(getattr(spec, "blocks", ())))]
    if not isinstance(spec, DecoderSpec):
        raise UserError("Layers of transformers cannot be divided into stages; use one.")
    weights, head = _numbers(spec)
    has_cache = [bool(block.mixers) for block in spec.blocks]
    found = _divide(weights, head, has_cache, count)
    if found is None:
        most = max(size for size in range(1, count) if size == 1 or _divide(weights, head, has_cache, size))
        raise UserError(
            f"the {sum(has_cache)} layers with attention or a state cannot be divided into {count} stages; "
            f"sizes that work for this model: 1 to {most}"
        )
    return found


def fewest_together(spec: ModelSpec, stages: Sequence[Range]) -> int:
    """Return how many sequences are computed in one step rather than divided among steps in flight."""
    if not isinstance(spec, DecoderSpec):
        return FEWEST_EVEN
    weights, head = _numbers(spec)
    times = [sum(weights[start:stop]) + head * (stop == len(weights)) for start, stop in stages]
    return FEWEST_EVEN if sum(times) >= EVEN * max(times) * len(times) else FEWEST_UNEVEN


def mixer_ranges(spec: ModelSpec, stages: Sequence[Range]) -> list[Range]:
    """Return the mixers of each stage, as numbers in the order of the whole model."""
    if not isinstance(spec, DecoderSpec):
        return [(0, len(spec.mixers))]
    ends = [0, *accumulate(len(block.mixers) for block in spec.blocks)]
    return [(ends[start], ends[stop]) for start, stop in stages]


def _numbers(spec: DecoderSpec) -> tuple[list[int], int]:
    """Return how many numbers the matrices of each block have, and the head."""
    head = math.prod(spec.head().shape) if spec.holds_head and spec.causal_lm else 0
    return [_block_numbers(spec, index) for index in range(len(spec.blocks))], head


def _block_numbers(spec: DecoderSpec, index: int) -> int:
    """Return how many numbers the matrices of a block have."""
    parts = [part for fused in spec.fused_linears(index) for part in fused]
    absorbed = mixer_parts(spec, index).absorbed
    return sum(math.prod(part.shape) for part in [*parts, *([] if absorbed is None else [absorbed])])


def _divide(weights: Sequence[int], head: int, has_cache: Sequence[bool], count: int) -> list[Range] | None:
    """Return the best division, None where some stage would have nothing in the cache."""
    total = len(weights)
    sums = [0, *accumulate(weights)]
    caches = [0, *accumulate(map(int, has_cache))]
    # best[start]: time of the slowest stage, and the cuts, for the blocks from `start` on, divided into the stages so far
    best: list[tuple[int, tuple[int, ...]] | None] = [
        (sums[total] - sums[start] + head, (start, total)) if caches[start] < caches[total] else None
        for start in range(total + 1)
    ]
    for _ in range(count - 1):
        following = best
        best = [None] * (total + 1)
        for start in range(total):
            choices = []
            for stop in range(start + 1, total):
                rest = following[stop]
                if rest is not None and caches[start] < caches[stop]:
                    slowest = max(sums[stop] - sums[start], rest[0])
                    choices.append((slowest, (start, *rest[1])))
            # the latest cuts, hence the largest first stages
            best[start] = min(choices, key=lambda one: (one[0], [-cut for cut in one[1]]), default=None)
    if best[0] is None:
        return None
    _, cuts = best[0]
    return list(pairwise(cuts))
