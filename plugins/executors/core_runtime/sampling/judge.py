"""The rows of a step that have a draft, decided by a rule.

Owns: which rows these are, and what a rule is told of each. Never does: sample, or change logits.
Called by: `core_runtime.sampling.sampler`, where a rule is configured.

What is decided takes the place of the sampled token, so drafts are verified as without a rule: a row keeps its draft when
its token equals it. No rule gives a rejected draft back.
"""

from __future__ import annotations

import numpy as np

from core_runtime.sampling.acceptance import AcceptanceRule, DraftedPosition
from core_runtime.sampling.distribution import Distribution, distribution
from core_runtime.sampling.noise import Float32, NoiseKey
from core_runtime.sampling.rows import SampleRows


def rows_to_judge(rule: AcceptanceRule, rows: SampleRows, start: int, stop: int) -> list[int]:
    """Those of the rows from `start` to `stop` on which the rule decides.

    A row has a draft when the next one is of the same sequence. Where a sequence has a token mask, only rows that are drawn
    at random are decided on: the mask of the others is not asked for.
    """
    if rows.num_drafted is None:
        return []
    slots = rows.slots
    has_draft = np.zeros(len(slots), bool)
    np.equal(slots[1:], slots[:-1], out=has_draft[:-1])
    is_random = rows.temperatures[: len(slots)] > 0
    if rule.judges_greedy:
        is_random |= ~rows.columns.masked[slots]
    has_draft &= is_random
    found = has_draft[start:stop].nonzero()[0] + start
    judged: list[int] = found.tolist()
    return judged


def position_of(rows: SampleRows, row: int, logits: Float32) -> DraftedPosition:
    """What a rule is told of a row with a draft. logits: float32 [V], adjusted and masked."""
    index = rows.index(row)
    state = rows.state(row)
    request = state.request
    return DraftedPosition(
        key=NoiseKey(request.seed, index, request.choice),
        draft=int(state.output(index + 1)[-1]),
        nth=rows.drafted(row),
        target=_distribution(rows, row, logits),
        drawn=state.drawn.pop(index, None),
    )


def keep_distribution(rows: SampleRows, row: int, logits: Float32) -> None:
    """Remember what a row's token, which becomes a draft, was drawn from. logits: float32 [V], adjusted and masked."""
    state = rows.state(row)
    state.drawn[rows.index(row)] = _distribution(rows, row, logits)


def _distribution(rows: SampleRows, row: int, logits: Float32) -> Distribution:
    """At temperature 0, where a rule decides nevertheless, there has to be something else than the largest: as at 1."""
    temperature = float(rows.temperatures[row]) or 1.0
    return distribution(logits, temperature, int(rows.top_k[row]), float(rows.top_p[row]), float(rows.least[row]))
