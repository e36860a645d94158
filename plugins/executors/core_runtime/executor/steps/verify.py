"""Reading of a step's sampled rows: the tokens that each sequence keeps, or why it failed.

Owns: the reading of sampled rows with and without drafts. Never does: compute logits or sample.
Called by: the model runner.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from core.api.step_plan import StepResult
from core_runtime.executor.steps.batch import PersistentBatch, StepInput
from core_runtime.sampling import accept


def keep_tokens(step: StepInput, batch: PersistentBatch, result: StepResult) -> NDArray[np.int64]:
    """Keep one token for every sequence that sampled; a failed row fails only its own sequence.

    Returns the rows after which the kept tokens were sampled, int64 [len(result.slots)].
    """
    rows = batch.rows
    owners = step.owners
    positions = step.positions
    token_ids = rows.tokens.astype(np.int32)
    for row, entry in rows.logprobs.items():
        slot = int(owners[row])
        result.logprobs[slot] = [entry]
    for row, ids in rows.supports.items():
        step.supports[int(owners[row])] = [ids]
    # The usual decode step. `extend` lets the next step continue this one, without filling the buffers again.
    if step.uniform and not rows.errors:
        batch.extend(step, token_ids)
        result.slots = step.slots
        result.token_ids = token_ids
        result.same_slots = True
        return positions
    for row, error in rows.errors.items():
        slot = int(owners[row])
        result.errors[slot] = error
    if rows.errors:
        good = token_ids >= 0
        owners = owners[good]
        positions = positions[good]
        token_ids = token_ids[good]
    batch.tokens.extend(owners, token_ids)
    result.slots = owners.astype(np.int32)
    result.token_ids = token_ids
    return positions


def verify_drafts(step: StepInput, batch: PersistentBatch, result: StepResult) -> NDArray[np.int64]:
    """Keep the tokens that agree with the drafts, and the one after them: one row for each draft and one more.

    Returns as `keep_tokens` does.
    """
    assert step.starts is not None
    rows = batch.rows
    slots: list[int] = []
    first: list[int] = []
    positions: list[int] = []
    bounds = step.starts.tolist()
    for begin, end in pairwise(bounds):
        slot = int(rows.slots[begin])
        drafts = step.drafts.get(slot, [])
        sampled = rows.tokens[begin:end].tolist()
        places = _kept_places(step, slot, drafts, sampled, begin)
        kept = [begin + place for place in places]
        # A failed row after the last kept one does not matter: its draft was rejected.
        errors = [rows.errors[row] for row in kept if row in rows.errors]
        if errors:
            result.errors[slot] = errors[0]
            continue
        token_ids = [sampled[place] for place in places]
        batch.tokens.extend_one(slot, token_ids)
        logprobs = [rows.logprobs[row] for row in kept if row in rows.logprobs]
        if logprobs:
            result.logprobs[slot] = logprobs
        if rows.supports:
            step.supports[slot] = [rows.supports[row] for row in kept]
        slots.append(slot)
        first.append(token_ids[0])
        last_position = step.positions[kept[-1]]
        positions.append(int(last_position))
        if len(kept) > 1:
            result.more_token_ids[slot] = token_ids[1:]
    result.slots = np.array(slots, np.int32)
    result.token_ids = np.array(first, np.int32)
    return np.array(positions, np.int64)


def _kept_places(step: StepInput, slot: int, drafts: list[int], sampled: list[int], begin: int) -> Sequence[int]:
    """Return the rows that a sequence keeps, counted from its first one, which is row `begin` of the step."""
    if step.trees is not None:
        first_token = int(step.positions[begin])
        places = step.trees.kept(slot, drafts, sampled, first_token)
        if places is not None:
            return places
    return range(accept(drafts, sampled) + 1)
