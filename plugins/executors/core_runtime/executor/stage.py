"""The place of a rank in a row of stages, each of which computes some of a model's blocks.

Owns: what a stage takes in before its part of a step and passes on after it, and the steps of ranks other than 0 whose tokens
are not known yet. Never does: start a rank, move plans, or draw tokens.
Called by: the worker (a step), the processes of ranks (outcomes).

Rank 0 is in the last stage. Several steps may be on their way, with different sequences: a rank other than 0 computes the
next one although it does not know yet what rank 0 has drawn for the previous one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from core.api.step_plan import Slot, StepPlan, StepResult
from core_runtime.contracts import Link
from core_runtime.executor.model_runner import ModelRunner, Prepared
from core_runtime.executor.steps.batch import PersistentBatch

FAILED: Final = -1
"""Number of rows that stands for a step which an earlier stage could not compute."""
FAILED_ELSEWHERE: Final = "an earlier stage could not compute this step"

Drafts = dict[Slot, list[int]]


class StageGroup(Protocol):
    """The ranks that divide the layers of one stage."""

    def begin(self, command: int) -> None:
        """Begin the step with this number."""
        ...

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        ...

    def abort(self) -> None:
        """Give up the present step on all ranks."""
        ...


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 has drawn in a step.

    number: of the step.
    slots, token_ids: int32, the sequences that sampled, and the first token of each.
    more: further tokens of sequences whose drafts were accepted.
    drafts: drafts for the next step.
    """

    number: int
    slots: bytes
    token_ids: bytes
    more: Drafts
    drafts: Drafts


@dataclass(slots=True)
class Unknown:
    """A step whose tokens are not known yet. lives: life of each slot in the batch when the step began."""

    prepared: Prepared
    batch: PersistentBatch
    lives: NDArray[np.int64]


class Stage:
    """A rank's place in the row of stages. The executor makes it, the worker computes with it.

    index, count: number of the stage, and of all stages.
    leads: whether this is rank 0, which draws tokens.
    before, after: ways from the previous stage and to the next one; None at the ends.
    group: ranks that divide the layers of this stage; None: it is one rank.

    number: of the step that comes next; set before each step.
    """

    def __init__(
        self,
        index: int,
        count: int,
        *,
        leads: bool,
        before: Link | None,
        after: Link | None,
        group: StageGroup | None = None,
    ) -> None:
        self.index = index
        self.count = count
        self.leads = leads
        self.number = 0
        self._before = before
        self._after = after
        self._group = group
        self._unknown: dict[int, Unknown] = {}
        self._latest = 0
        self._drafts: Drafts = {}
        self._sent = 0
        self._head = torch.zeros(2, dtype=torch.int64)

    def share(self, proposed: Drafts) -> Drafts:
        """Note the drafts of the present step for its outcome, and return them."""
        self._drafts = proposed
        return proposed

    def execute(self, runner: ModelRunner, plan: StepPlan) -> StepResult:
        """Compute this stage's part of a step. Returns its result on rank 0, an empty one elsewhere."""
        if self._group is not None:
            self._group.begin(self.number)
        self._drafts = {}
        prepared = runner.prepare(plan)
        num_tokens = 0 if prepared is None else prepared.step.num_tokens
        self._receive(runner, num_tokens)
        result = StepResult()
        if prepared is not None and self.leads:
            result = runner.compute(prepared)
        elif prepared is not None:
            self._latest = self.number
            runner.follow(prepared)
            batch = runner.batch
            lives = batch.tokens.lives(prepared.step.slots)
            self._unknown[self.number] = Unknown(prepared, batch, lives)
        if self._group is not None:
            # Without it, a rank could go on with the sum of a step that another one gave up.
            self._group.barrier()
        self._send(runner, num_tokens)
        return result

    def give_up(self) -> None:
        """Let the other ranks know that the present step has failed here."""
        if self._group is not None:
            self._group.abort()
        if self._after is not None and self._sent < self.number:
            self._announce(FAILED)

    def outcome(self, result: StepResult) -> Outcome:
        """Return what the other ranks need to know of the result of the present step."""
        slots = result.slots.astype(np.int32).tobytes()
        return Outcome(
            self.number, slots, result.token_ids.astype(np.int32).tobytes(), result.more_token_ids, self._drafts
        )

    def learn(self, outcome: Outcome) -> None:
        """Take over what rank 0 has drawn in a step; the earlier ones that are not known yet have failed."""
        for number in [number for number in self._unknown if number < outcome.number]:
            del self._unknown[number]
        unknown = self._unknown.pop(outcome.number, None)
        if unknown is None:
            return
        slots = np.frombuffer(outcome.slots, np.int32)
        token_ids = np.frombuffer(outcome.token_ids, np.int32)
        batch, step = unknown.batch, unknown.prepared.step
        if outcome.number == self._latest and step.uniform and len(slots) == len(step.slots) and not outcome.more:
            # As on rank 0, where the next step may continue this one in its buffers.
            batch.rows.tokens[:] = token_ids
            batch.extend(step, token_ids)
            batch.drafts.hold(outcome.drafts)
            return
        lives = dict(zip(step.slots.tolist(), unknown.lives.tolist(), strict=True))
        for slot, token_id in zip(slots.tolist(), token_ids.tolist(), strict=True):
            # A later plan may have given the slot to another sequence already.
            if lives[slot] != batch.tokens.lives(slot) or batch.requests[slot] is None:
                continue
            batch.tokens.extend_one(slot, [token_id, *outcome.more.get(slot, ())])
            if slot in outcome.drafts:
                batch.drafts.hold({slot: outcome.drafts[slot]})

    def _receive(self, runner: ModelRunner, num_tokens: int) -> None:
        """Fill the residual stream with that of the previous stage. Raises RuntimeError when that stage has failed."""
        if self._before is None:
            return
        residual = runner.forward.model.workspace.buffer("residual")
        head = self._head
        while True:
            self._before.recv(head)
            number, rows = head.tolist()
            if rows > 0:
                self._before.recv(residual[:rows])
            # Those of an earlier step are left over where this rank failed before it took them in.
            if number == self.number:
                break
        if rows == FAILED:
            raise RuntimeError(FAILED_ELSEWHERE)
        if rows != num_tokens:
            raise RuntimeError(f"{rows} tokens have come from the previous stage, expected {num_tokens}")

    def _send(self, runner: ModelRunner, num_tokens: int) -> None:
        if self._after is None:
            return
        self._announce(num_tokens)
        if num_tokens:
            self._after.send(runner.forward.model.workspace.view("residual", num_tokens))

    def _announce(self, rows: int) -> None:
        assert self._after is not None, "the last stage passes nothing on"
        self._sent = self.number
        self._head[0], self._head[1] = self.number, rows
        self._after.send(self._head)
