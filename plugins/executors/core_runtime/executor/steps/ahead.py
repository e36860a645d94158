"""Asynchronous steps: a device gets the next step before the results of the previous one are known.

Owns: the steps in flight, and the order in which they are launched. Never does: plan, or compute.
Called by: the worker, where the runtime has `Downloads`.

A step whose output the device can compute alone (tokens, and their logprobs) needs nothing of earlier steps but the
tokens that the device drew itself. So it is launched at once, and the host reads its results one step later. Sequences
that continue take their tokens from where they were drawn. New sequences, and those that compute a part of their
prompt, get theirs from the host. A sequence that turns out to have ended computes one token too many, which is
discarded.

A step whose tokens the device cannot draw alone (drafts, masks, changed logits) waits for the previous ones, and is
computed when its result is requested.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.api.step_plan import Int32Array, StepPlan, StepResult
from core_runtime.contracts import Downloads
from core_runtime.executor.cache.page_copies import SavedPages
from core_runtime.executor.model_runner import ModelRunner, Prepared
from core_runtime.executor.steps.batch import StepInput
from core_runtime.executor.steps.device_tokens import DeviceTokens
from core_runtime.executor.steps.staging import Returned, Returns
from core_runtime.executor.steps.token_table import Expected
from core_runtime.sampling.failures import not_finite
from core_runtime.sampling.logprob_rows import LogprobRows

MOST_IN_FLIGHT = 2
NOT_DRAWN = -1


@dataclass(slots=True)
class Begun:
    """A step that was begun. It is in flight until `finish` returns its result.

    number: running number of the step.
    result: the result, as far as it is known.
    held: a step that is computed when its result is requested; None: it is on the device, or done.
    returned: tokens and logprobs on their way back; None: there are none.
    expected: the sequences that the tokens belong to.
    told: rows with logprobs; None: there are none.
    slots: int32 [B], as planned.
    is_uniform: whether all sequences sample.
    saved: KV blocks that were saved before the step, or None.
    error: the exception that it failed with, or None.
    """

    number: int
    result: StepResult = field(default_factory=StepResult)
    held: Prepared | None = None
    returned: Returned | None = None
    expected: Expected | None = None
    told: LogprobRows | None = None
    slots: Int32Array | None = None
    is_uniform: bool = False
    saved: SavedPages | None = None
    error: Exception | None = None


class StepsAhead:
    """The asynchronous steps of one runner. downloads: copies from the device."""

    def __init__(self, runner: ModelRunner, downloads: Downloads) -> None:
        self._runner = runner
        self._batch = runner.batch
        on_device = runner.batch.rows.on_device
        assert on_device is not None, "the device draws no tokens"
        self._drawn = on_device.out
        self._returns = Returns(len(on_device.memory), downloads)
        self.in_flight: deque[Begun] = deque()
        self._num_begun = 0
        # row of each slot's newest token in the latest step that drew any
        self._rows_drawn = np.full(len(runner.batch.requests), NOT_DRAWN)
        self._continues = False
        self._last_launched = False

    def begin(self, plan: StepPlan) -> Begun:
        """Begin a plan and return the argument of `finish`. Raises any exception of the computation."""
        follows = self._continues and plan.same_batch
        self._continues = False
        if not follows:
            self._make_way(plan)
        prepared = self._runner.prepare(plan)
        self._num_begun += 1
        begun = Begun(self._num_begun)
        begun.result.proposer_off = self._runner.proposer_off
        if prepared is None:
            return begun
        begun.slots = prepared.settled.slots
        step = prepared.step
        if follows:
            taken = DeviceTokens(self._drawn, len(step.owners))
            self._launch(begun, step, taken)
        elif self._runner.is_plain(prepared):
            self._launch(begun, step, self._taken(step))
        else:
            self._know_tokens(step)
            # Computed in `finish`: until then the scheduler can plan on.
            begun.held = prepared
        self.in_flight.append(begun)
        return begun

    def finish(self, begun: Begun) -> StepResult:
        """Wait for a step and all earlier ones. Raises the exception of its computation."""
        self._finish_until(begun.number)
        if begun.error is not None:
            raise begun.error
        return begun.result

    def compute_deferred(self) -> None:
        """Compute all held steps, so that later work on the device comes after them.

        Raises RuntimeError if one of them fails.
        """
        # A held step waits for all earlier ones, so only the newest step can be held.
        if self.in_flight and self.in_flight[-1].held is not None:
            self._settle()

    def _settle(self) -> None:
        """Wait for all steps, and keep their results. Raises RuntimeError if one of them fails."""
        waiting = list(self.in_flight)
        self._finish_until(self._num_begun)
        for begun in waiting:
            if begun.error is not None:
                raise RuntimeError("the step before this one failed") from begun.error

    def _make_way(self, plan: StepPlan) -> None:
        """Wait for the results that a plan needs which does not continue the previous step."""
        self.compute_deferred()
        if self._runner.guesses or plan.num_drafts:
            self._settle()
        if self._last_launched:
            # the drawn tokens will be in the token table, but not in the buffer from which a continuing step on the host reads
            self._batch.forget_latest()
            self._last_launched = False

    def _taken(self, step: StepInput) -> DeviceTokens | None:
        """Return the tokens that the device takes from the latest step that drew any; None: the host knows all tokens."""
        num_expected = self._batch.tokens.num_expected[step.slots]
        waiting = num_expected.nonzero()[0]
        if not len(waiting):
            return None
        rows = self._rows_drawn[step.slots[waiting]]
        if rows.min() == NOT_DRAWN:  # it was left out of a step, whose tokens overwrote its own
            self._know_tokens(step)
            return None
        newest = step.cu_seqlens[1:][waiting] - 1
        return DeviceTokens.chosen(self._drawn, self._batch.buffers, rows, newest.astype(np.int64))

    def _know_tokens(self, step: StepInput) -> None:
        """Wait for all steps, so that the host knows all tokens of this one."""
        if self.in_flight:
            self._settle()
            self._batch.write_tokens(step)

    def _launch(self, begun: Begun, step: StepInput, taken: DeviceTokens | None) -> None:
        given = self._runner.launch(step, taken)
        owners = step.owners
        begun.is_uniform = step.uniform
        if given is not None:
            begun.returned = self._returns.begin(given)
            begun.expected = self._batch.tokens.expect(owners)
            rows = self._batch.rows
            begun.told = rows.told() if rows.reported else None
            # The step's tokens overwrite those of all earlier steps.
            self._rows_drawn.fill(NOT_DRAWN)
            self._rows_drawn[owners] = np.arange(len(owners))
        self._last_launched = True
        if begun.is_uniform:
            self._batch.expect(step)
            self._continues = True

    def _finish_until(self, number: int) -> None:
        """Wait for all steps up to this number. An exception is kept for the `finish` call of its own step."""
        while self.in_flight and self.in_flight[0].number <= number:
            oldest = self.in_flight.popleft()
            try:
                self._finish(oldest)
            except Exception as error:
                oldest.error = error

    def _finish(self, begun: Begun) -> None:
        if begun.held is not None:
            prepared = begun.held
            begun.held = None
            begun.result = self._runner.compute(prepared)
        elif begun.returned is not None:
            begun.returned.wait()
            self._keep(begun, begun.returned.words)

    def _keep(self, begun: Begun, words: NDArray[np.int64]) -> None:
        """Record one token for every sequence that sampled; a failed row fails only its own sequence."""
        assert begun.expected is not None and begun.slots is not None
        result = begun.result
        owners = begun.expected.slots
        token_ids = words[: len(owners)].astype(np.int32)
        if begun.told is not None:
            self._add_logprobs(begun, begun.told, words)
        is_good = token_ids >= 0
        all_good = bool(is_good.all())
        # a failed sequence ends, so any valid token may stand in for its missing one
        self._batch.tokens.tell(begun.expected, token_ids if all_good else token_ids.clip(0))
        if begun.is_uniform and all_good:
            result.slots = begun.slots
            result.token_ids = token_ids
            result.same_slots = True
            return
        for slot in owners[~is_good].tolist():
            result.errors[slot] = not_finite()
        result.slots = owners[is_good].astype(np.int32)
        result.token_ids = token_ids[is_good]

    def _add_logprobs(self, begun: Begun, told: LogprobRows, words: NDArray[np.int64]) -> None:
        """Add the requested logprobs to the result. words: the tokens, then the words that `LogprobRows` reads."""
        assert begun.expected is not None
        entries = told.entries(words[len(self._drawn) :])
        for row, entry in zip(told.rows, entries, strict=True):
            if words[row] >= 0:
                slot = int(begun.expected.slots[row])
                begun.result.logprobs[slot] = [entry]
