"""Steps that a device is given before the results of those before them are known.

Owns: the steps in flight. Never does: plan, or compute. Called by: the worker, where the runtime has `Downloads`.

A step that only continues the one before, with the same sequences and one token each, needs nothing but the tokens that the
device has drawn itself. So it is launched at once, and the host reads tokens one step behind the device. Any other step
waits for those before it; one that gives more than tokens (log-probabilities, drafts, masks) is computed when its result is
asked for, so that the result of the one before need not wait for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.api.kv_transfer import Page
from core.api.step_plan import Int32Array, StepPlan, StepResult
from core.executor.batch import StepInput
from core.executor.model_runner import ModelRunner, Prepared
from core.executor.staging import Returned, Returns
from core.plugin.contracts import Downloads
from core.sampling.failures import not_finite

MOST_IN_FLIGHT = 2


@dataclass(slots=True)
class Begun:
    """A step on its way.

    number: counts steps.
    result: what is known of it.
    held: a step that is computed when it is asked for; None: it is with the device, or done.
    returned: the tokens on their way back; None: none are.
    slots: int32 [B], as planned.
    owners: int64 [R], the slots of the sequences that sample.
    is_uniform: whether all of them do.
    pages: the bytes of KV blocks that were saved in front of it, or None.
    """

    number: int
    result: StepResult = field(default_factory=StepResult)
    held: Prepared | None = None
    returned: Returned | None = None
    slots: Int32Array | None = None
    owners: NDArray[np.int64] | None = None
    is_uniform: bool = False
    pages: list[Page] | None = None


class StepsAhead:
    """The steps of one runner. downloads: the device's way back."""

    def __init__(self, runner: ModelRunner, downloads: Downloads) -> None:
        self._runner = runner
        self._batch = runner.batch
        on_device = runner.batch.rows.on_device
        assert on_device is not None, "the device draws no tokens"
        self._drawn = on_device.out
        self._returns = Returns(len(self._drawn), downloads)
        self._in_flight: deque[Begun] = deque()
        self._num_begun = 0
        self._continues = False
        self._last_launched = False

    def begin(self, plan: StepPlan) -> Begun:
        """Take a plan; returns what `finish` wants. Raises what the computation raises."""
        follows = self._continues and plan.same_batch
        self._continues = False
        if not follows:
            self.settle()
            self._forget_drawn()
        prepared = self._runner.prepare(plan)
        self._num_begun += 1
        begun = Begun(self._num_begun)
        begun.result.proposer_off = self._runner.proposer_off
        if prepared is None:
            return begun
        begun.slots = prepared.settled.slots
        self._in_flight.append(begun)
        if follows or self._runner.is_plain(prepared):
            self._launch(begun, prepared.step, follows)
        else:
            begun.held = prepared
        return begun

    def finish(self, begun: Begun) -> StepResult:
        """Wait for a step, and for those before it."""
        while self._in_flight and self._in_flight[0].number <= begun.number:
            oldest = self._in_flight.popleft()
            self._finish(oldest)
        return begun.result

    def settle(self) -> None:
        """Wait for all steps; their results are kept."""
        if self._in_flight:
            self.finish(self._in_flight[-1])

    def _forget_drawn(self) -> None:
        """Tokens that the device drew lie in the table by now, but not where a step that continues would find them."""
        if self._last_launched:
            self._batch.forget_latest()
            self._last_launched = False

    def _launch(self, begun: Begun, step: StepInput, follows: bool) -> None:
        count = len(step.owners)
        known = self._drawn[:count] if follows else None
        drawn = self._runner.launch(step, known)
        begun.owners = step.owners
        begun.is_uniform = step.uniform
        if count:
            begun.returned = self._returns.begin(drawn)
        self._last_launched = True
        if begun.is_uniform:
            self._batch.expect(step)
            self._continues = True

    def _finish(self, begun: Begun) -> None:
        if begun.held is not None:
            prepared = begun.held
            begun.held = None
            begun.result = self._runner.compute(prepared)
        elif begun.returned is not None:
            begun.returned.wait()
            self._keep(begun, begun.returned.tokens)

    def _keep(self, begun: Begun, drawn: NDArray[np.int64]) -> None:
        """One token for every sequence that sampled; a failed row fails only its own sequence."""
        assert begun.owners is not None and begun.slots is not None
        result = begun.result
        owners = begun.owners
        token_ids = drawn.astype(np.int32)
        if begun.is_uniform and token_ids.min() >= 0:
            self._batch.tokens.extend(owners, token_ids)
            result.slots = begun.slots
            result.token_ids = token_ids
            result.same_slots = True
            return
        good = token_ids >= 0
        for slot in owners[~good].tolist():
            result.errors[slot] = not_finite()
            self._continues = False
        self._batch.tokens.extend(owners[good], token_ids[good])
        result.slots = owners[good].astype(np.int32)
        result.token_ids = token_ids[good]
