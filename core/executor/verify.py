"""What became of each sequence's rows of a step: the tokens that it keeps, or why it failed.

Owns: the reading of sampled rows with and without drafts. Never does: compute logits or sample.
Called by: the model runner.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from core.api.step_plan import StepResult
from core.executor.batch import PersistentBatch, StepInput
from core.sampling import SampleRows, accept


def keep_tokens(step: StepInput, batch: PersistentBatch, result: StepResult) -> NDArray[np.int64]:
    """One token for every sequence that sampled; a failed row fails only its own sequence.

    Returns the positions behind which the kept tokens were sampled, int64 [len(result.slots)].
    """
    rows = batch.rows
    owners, positions = step.owners, step.positions
    token_ids = rows.tokens.astype(np.int32)
    if rows.logprobs:
        result.logprobs = {int(owners[row]): [entry] for row, entry in rows.logprobs.items()}
    if rows.errors:
        result.errors = {int(owners[row]): error for row, error in rows.errors.items()}
        good = token_ids >= 0
        owners, positions, token_ids = owners[good], positions[good], token_ids[good]
    elif step.uniform:
        batch.extend(step, token_ids)
        result.slots, result.token_ids, result.same_slots = step.slots, token_ids, True
        return positions
    batch.tokens.extend(owners, token_ids)
    result.slots, result.token_ids = owners.astype(np.int32), token_ids
    return positions


def verify_drafts(step: StepInput, batch: PersistentBatch, result: StepResult) -> NDArray[np.int64]:
    """The same with drafts: one row for each draft and one behind them, of which the agreeing ones are kept."""
    assert step.starts is not None
    rows = batch.rows
    slots: list[int] = []
    first: list[int] = []
    positions: list[int] = []
    bounds = step.starts.tolist()
    for begin, end in pairwise(bounds):
        slot = int(rows.slots[begin])
        sampled = rows.tokens[begin:end].tolist()
        accepted = accept(step.drafts.get(slot, []), sampled)
        stop = begin + accepted + 1
        error = next((rows.errors[row] for row in range(begin, stop) if row in rows.errors), None)
        if error is not None:
            result.errors[slot] = error
            continue
        token_ids = sampled[: accepted + 1]
        batch.tokens.extend_one(slot, token_ids)
        _report(rows, begin, stop, slot, result)
        slots.append(slot)
        first.append(token_ids[0])
        positions.append(int(step.positions[stop - 1]))
        if accepted:
            result.more_token_ids[slot] = token_ids[1:]
    result.slots = np.array(slots, np.int32)
    result.token_ids = np.array(first, np.int32)
    return np.array(positions, np.int64)


def _report(rows: SampleRows, begin: int, stop: int, slot: int, result: StepResult) -> None:
    entries = [rows.logprobs[row] for row in range(begin, stop) if row in rows.logprobs]
    if entries:
        result.logprobs[slot] = entries
