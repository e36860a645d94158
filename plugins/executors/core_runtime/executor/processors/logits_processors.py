"""Guarded calls of the logits processors: a failure affects only the requests that use the processor.

Owns: which sequences use which processors, the calls, and the error of a row whose processor failed. Never does: load
a processor (`core_runtime.executor.processors.loading` does), or change logits itself.
Called by: the persistent batch (sequences that come and go), the sampler (as its `CustomStage`), the engine (parameters).

Each processor is called in a thread of its own, with a time limit. If a call for several rows fails, each row is
retried by itself, and only those that fail again get no token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.step_plan import SequenceKey
from core_runtime.contracts import BatchChanges, LogitsProcessor, LogitsRow, NeedsOrder
from core_runtime.executor.background_calls import BackgroundCalls
from core_runtime.sampling.changes.stages import Adjusted
from core_runtime.sampling.noise import Float32
from core_runtime.sampling.state import SequenceSampling

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NamedProcessor:
    """A processor and its name in errors."""

    name: str
    processor: LogitsProcessor


class ProcessorError(Exception):
    """Error of a processor; `str` is a sentence that names it."""


class LogitsProcessors:
    """All processors of an engine; implements `core_runtime.sampling.changes.stages.CustomStage`.

    named: processors in the order in which they run.
    limit_s: time limit of a call, in seconds.
    """

    def __init__(self, named: Sequence[NamedProcessor], limit_s: float) -> None:
        self._guarded = [_Guarded(one, limit_s) for one in named]
        self._used: dict[SequenceKey, list[_Guarded]] = {}
        self._broken: dict[SequenceKey, str] = {}

    def check(self, params: SamplingParams) -> str:
        """Validate a request's parameters. Returns an error message, empty if they are valid."""
        for guarded in self._guarded:
            try:
                guarded.call(guarded.processor.validate_params, params)
            except ProcessorError as error:
                cause = error.__cause__
                return f"{guarded.name}: {cause}" if isinstance(cause, ValueError) else str(error)
        return ""

    def start(self, request: EngineRequest, state: SequenceSampling) -> None:
        """Start a sequence: record in its state which processors change its logits."""
        params = request.params
        early: list[int] = []
        late: list[int] = []
        for number, guarded in enumerate(self._guarded):
            # Late processors do not change which logit is largest, so a greedy request does not need them.
            if params.greedy and guarded.is_late:
                continue
            try:
                if not guarded.call(guarded.processor.wants, params):
                    continue
                self._used.setdefault(request.key, []).append(guarded)
                guarded.call(guarded.processor.update, BatchChanges(started=[(request.key, params)]))
            except ProcessorError as error:
                self._broken.setdefault(request.key, str(error))
            # Also after a failure: the row must reach `_run`, which gives it its error.
            where = late if guarded.is_late else early
            where.append(number)
            state.in_order = state.in_order or guarded.needs_order
        state.processors = tuple(early)
        state.late_processors = tuple(late)

    def end(self, keys: Sequence[SequenceKey]) -> None:
        """Notify the processors of sequences that left the batch."""
        for key in keys:
            self._broken.pop(key, None)
            for guarded in self._used.pop(key, ()):
                try:
                    guarded.call(guarded.processor.update, BatchChanges(finished=[key]))
                except ProcessorError as error:
                    logger.error("%s It was told that a sequence is gone.", error)

    def apply(self, logits: Float32, rows: Sequence[Adjusted], *, late: bool) -> dict[int, str]:
        """Run the early or the late processors on a step's rows; see `CustomStage`. Returns errors by row."""
        failed: dict[int, str] = {}
        for number, guarded in enumerate(self._guarded):
            if guarded.is_late != late:
                continue
            places: list[int] = []
            for place, row in enumerate(rows):
                numbers = row.state.late_processors if late else row.state.processors
                if number in numbers and place not in failed:
                    places.append(place)
            failed |= self._run(guarded, logits, rows, places)
        return failed

    def close(self) -> None:
        """End the threads of all processors."""
        for guarded in self._guarded:
            guarded.close()

    def _run(
        self, guarded: _Guarded, logits: Float32, rows: Sequence[Adjusted], places: Sequence[int]
    ) -> dict[int, str]:
        """Run one processor on the rows at `places`. Returns the errors of rows without logits."""
        failed: dict[int, str] = {}
        sound: list[int] = []
        for place in places:
            sentence = self._broken.get(rows[place].state.request.key)
            if sentence is None:
                sound.append(place)
            else:
                failed[place] = sentence
        # One call for all rows is the fast path; processors that need order get one row per call.
        groups = [[place] for place in sound] if guarded.needs_order else [sound]
        while groups:
            group = groups.pop()
            if not group:
                continue
            try:
                failed |= _changed(guarded, logits, rows, group)
            except ProcessorError as error:
                if len(group) == 1:
                    failed[group[0]] = str(error)
                else:
                    groups += [[place] for place in group]
        return failed


class _Guarded:
    """A processor and its thread.

    name: name in errors.
    is_late: whether it runs after the temperature.
    needs_order: see `NeedsOrder`.
    """

    def __init__(self, named: NamedProcessor, limit_s: float) -> None:
        self.name = named.name
        self.processor = named.processor
        self.is_late = bool(named.processor.is_argmax_invariant)
        self.needs_order = isinstance(named.processor, NeedsOrder) and named.processor.needs_order
        self._limit_s = limit_s
        self._beside = BackgroundCalls(named.name)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the processor and return its answer. Raises ProcessorError for any failure."""
        try:
            return self._beside.call(function, *arguments, limit_s=self._limit_s)
        except TimeoutError as error:
            self._beside = BackgroundCalls(self.name)  # the old thread is stuck in the call that hangs
            raise ProcessorError(f"The {self.name} hangs: {error}.") from None
        except SystemExit as error:
            raise ProcessorError(f"The {self.name} called sys.exit({error}).") from None
        except Exception as error:
            logger.error("The %s failed.", self.name, exc_info=error)
            said = " ".join(str(error).split()).rstrip(".")
            raise ProcessorError(f"The {self.name} failed: {type(error).__name__}: {said}.") from error

    def close(self) -> None:
        """End the processor's thread."""
        self._beside.close()


def _changed(guarded: _Guarded, logits: Float32, rows: Sequence[Adjusted], places: Sequence[int]) -> dict[int, str]:
    """Change some rows in place. Returns the errors of rows with invalid logits. On ProcessorError, nothing has changed."""
    views = [_view(rows[place]) for place in places]
    own = logits[places]  # a copy: a call that fails half-way changes nothing
    expected = own.shape

    def apply() -> Any:
        # The tensor is made in the processor's thread: inference tensors of this thread could not be changed there in place.
        return guarded.processor.apply(torch.from_numpy(own), views)

    answer = guarded.call(apply)
    is_tensor = isinstance(answer, Tensor) and answer.is_floating_point()
    if not is_tensor or tuple(answer.shape) != expected:
        given = f"{answer.dtype} {tuple(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
        raise ProcessorError(f"The {guarded.name} answered {given}; expected float32 {expected}.")
    values: Float32 = answer.detach().to("cpu", torch.float32).numpy()
    wrong = (np.isnan(values) | (values == np.inf)).any(axis=1)
    failed: dict[int, str] = {}
    for place, row, is_wrong in zip(places, values, wrong.tolist(), strict=True):
        # a row that the model itself got wrong is reported as the model's error
        if is_wrong and np.isfinite(logits[place].max()):
            failed[place] = (
                f"The {guarded.name} made logits that are NaN or infinite; expected finite numbers and -inf."
            )
        else:
            logits[place] = row
    return failed


def _view(row: Adjusted) -> LogitsRow:
    """Return a row as a processor sees it."""
    state = row.state
    request = state.request
    prompt = state.tokens[: state.num_prompt_tokens]
    output = state.output(row.index)
    for tokens in (prompt, output):
        # The arrays are views of the engine's token table.
        tokens.flags.writeable = False
    return LogitsRow(request.key, state.params, prompt, output, row.num_drafted)
