"""Decisions of a rule of acceptance on the rows of a step that have a draft.

Owns: which rows these are, and the facts that a rule gets. Never does: sample, or change logits.
Called by: `core_runtime.sampling.sampler`, where a rule is configured.

The decision replaces the sampled token, so drafts are verified as without a rule: a row keeps its draft when its token
equals it. No rule returns a draft that it rejected.
"""

from __future__ import annotations

import numpy as np

from core_runtime.sampling.distribution import Distribution, distribution
from core_runtime.sampling.drafts.acceptance import AcceptanceRule, DraftedPosition
from core_runtime.sampling.noise import Float32, NoiseKey
from core_runtime.sampling.rows import SampleRows


def rows_to_judge(rule: AcceptanceRule, rows: SampleRows, start: int, stop: int) -> list[int]:
    """Return the rows from `start` to `stop` on which the rule decides.

    A row has a draft when the next row belongs to the same sequence. Of sequences with a token mask, only rows that are
    drawn at random are decided on, because the masks of the others are not computed.
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
    """Return the facts about a row with a draft. logits: float32 [V], adjusted and masked."""
    index = rows.index(row)
    state = rows.state(row)
    request = state.request
    return DraftedPosition(
        key=NoiseKey(request.seed, index, request.choice),
        # The draft is the token after the row's position: it follows the output in the token table.
        draft=int(state.output(index + 1)[-1]),
        nth=rows.drafted(row),
        target=_distribution(rows, row, logits),
        drawn=state.drawn.pop(index, None),
    )


def keep_distribution(rows: SampleRows, row: int, logits: Float32) -> None:
    """Store the distribution of a row's token, which becomes a draft. logits: float32 [V], adjusted and masked."""
    state = rows.state(row)
    state.drawn[rows.index(row)] = _distribution(rows, row, logits)


def _distribution(rows: SampleRows, row: int, logits: Float32) -> Distribution:
    """Return the distribution of a row. At temperature 0 it is that of temperature 1, so that there is a second choice."""
    temperature = float(rows.temperatures[row]) or 1.0
    return distribution(logits, temperature, int(rows.top_k[row]), float(rows.top_p[row]), float(rows.least[row]))
