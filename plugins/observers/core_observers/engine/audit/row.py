"""One row of a step, computed again alone.

Owns: `AuditedRow` (what is compared, and what with), and computing it on an executor. Never does: choose a row, or decide what
follows from a difference. Called by: the audited executor.

The row is a new sequence in a free slot, with the tokens that it had before the step, as after a preemption. It reads the
sequence's own blocks and writes spare ones, which hold copies of the blocks, states included, from before the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.api.kv_transfer import KVTransfers
from core.api.step_plan import NewSequence, StateCopy, StepPlan, StepResult
from core.engine.executor import Executor


@dataclass(frozen=True, slots=True)
class AuditedRow:
    """One row of a step that has not been computed.

    slot:      of the sequence in the step. free_slot: another one, in which it is computed again.
    num_tokens: computed in the step.
    written:   blocks that the step writes for it. spare: as many, which are written instead.
    sequence:  with the spare blocks in its tables.
    """

    slot: int
    free_slot: int
    num_tokens: int
    written: list[int]
    spare: list[int]
    sequence: NewSequence


@dataclass(frozen=True, slots=True)
class Difference:
    """kind: `token`, `error`, `logprobs` or `cache`. served, alone: both sides: ids, sentences, or bytes of the blocks."""

    kind: str
    served: object
    alone: object


def keep(executor: Executor, row: AuditedRow) -> None:
    """Copy what the step is about to overwrite into the spare blocks."""
    executor.execute(StepPlan(copies=[StateCopy(row.written, row.spare)]))


def compute(executor: Executor, row: AuditedRow) -> tuple[StepResult, list[np.ndarray], list[np.ndarray]]:
    """Compute the row alone. Returns its result, and the pages that the step and that this wrote."""
    one = np.array([row.free_slot], np.int32)
    plan = StepPlan(
        slots=one,
        query_lens=np.array([row.num_tokens], np.int32),
        num_computed=np.array([row.sequence.num_computed_tokens], np.int32),
        new=[row.sequence],
        total_num_tokens=row.num_tokens,
    )
    pages = None
    try:
        result = executor.execute(plan)
    finally:
        # Whatever happened, the slot is free again.
        transfers = KVTransfers(0, [*row.written, *row.spare], [])
        pages = executor.execute(StepPlan(removed=[row.free_slot], transfers=transfers)).pages
    assert pages is not None, "the executor saves pages, or the observer would not audit"
    count = len(row.written)
    return result, list(pages[:count]), list(pages[count:])


def difference(
    row: AuditedRow, served: StepResult, alone: StepResult, pages: list[np.ndarray], own_pages: list[np.ndarray]
) -> Difference | None:
    """Return the first difference between a row in its step and alone; None: both are the same."""
    error, own_error = served.errors.get(row.slot), alone.errors.get(row.free_slot)
    if error != own_error:
        return Difference("error", error, own_error)
    if error is not None:
        return None
    token, own_token = _token(served, row.slot), _token(alone, row.free_slot)
    if token != own_token:
        return Difference("token", token, own_token)
    if served.logprobs.get(row.slot) != alone.logprobs.get(row.free_slot):
        return Difference("logprobs", served.logprobs.get(row.slot), alone.logprobs.get(row.free_slot))
    for page, own in zip(pages, own_pages, strict=True):
        if not np.array_equal(page, own):
            return Difference("cache", page.tobytes(), own.tobytes())
    return None


def _token(result: StepResult, slot: int) -> int | None:
    """Return the token that a slot sampled; None for a row in the middle of its prompt."""
    place = np.flatnonzero(result.slots == slot)
    return int(result.token_ids[place[0]]) if len(place) else None
