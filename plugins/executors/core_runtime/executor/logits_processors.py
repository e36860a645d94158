"""The logits processors of an engine, called so that whatever they do costs the requests that asked for them alone.

Owns: which sequences have which processors, the calls, and the sentence for a row whose processor failed. Never does: load
a processor (`core_runtime.executor.processor_loading` does), or change logits itself.
Called by: the persistent batch (sequences that come and go), the sampler (as its `CustomStage`), the engine (parameters).

Each processor is called by a thread of its own and waited for so long. Where a call for several rows fails, each row is
tried by itself, and only those that fail again have no token.
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
from core_runtime.executor.calls_beside import CallsBeside
from core_runtime.sampling.noise import Float32
from core_runtime.sampling.stages import Adjusted
from core_runtime.sampling.state import SequenceSampling

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NamedProcessor:
    """A processor, and what errors call it."""

    name: str
    processor: LogitsProcessor


class ProcessorError(Exception):
    """A processor failed; `str` is a sentence that names it."""


class LogitsProcessors:
    """Implements `core_runtime.sampling.stages.CustomStage`.

    named: in the order in which they run.
    limit_s: seconds that a call may take.
    """

    def __init__(self, named: Sequence[NamedProcessor], limit_s: float) -> None:
        self._guarded = [_Guarded(one, limit_s) for one in named]
        self._used: dict[SequenceKey, list[_Guarded]] = {}
        self._broken: dict[SequenceKey, str] = {}

    def check(self, params: SamplingParams) -> str:
        """What is wrong with a request's parameters: a sentence, empty when nothing is."""
        for guarded in self._guarded:
            try:
                guarded.call(guarded.processor.validate_params, params)
            except ProcessorError as error:
                cause = error.__cause__
                return f"{guarded.name}: {cause}" if isinstance(cause, ValueError) else str(error)
        return ""

    def start(self, request: EngineRequest, state: SequenceSampling) -> None:
        """A sequence enters the batch: note in its state which processors change its logits."""
        params = request.params
        early: list[int] = []
        late: list[int] = []
        for number, guarded in enumerate(self._guarded):
            if params.greedy and guarded.is_late:
                continue
            try:
                if not guarded.call(guarded.processor.wants, params):
                    continue
                self._used.setdefault(request.key, []).append(guarded)
                guarded.call(guarded.processor.update, BatchChanges(started=[(request.key, params)]))
            except ProcessorError as error:
                self._broken.setdefault(request.key, str(error))
            where = late if guarded.is_late else early
            where.append(number)
            state.in_order = state.in_order or guarded.needs_order
        state.processors = tuple(early)
        state.late_processors = tuple(late)

    def end(self, keys: Sequence[SequenceKey]) -> None:
        """Sequences left the batch."""
        for key in keys:
            self._broken.pop(key, None)
            for guarded in self._used.pop(key, ()):
                try:
                    guarded.call(guarded.processor.update, BatchChanges(finished=[key]))
                except ProcessorError as error:
                    logger.error("%s It was told that a sequence is gone.", error)

    def apply(self, logits: Float32, rows: Sequence[Adjusted], *, late: bool) -> dict[int, str]:
        """See `CustomStage`."""
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
        """End the threads."""
        for guarded in self._guarded:
            guarded.close()

    def _run(
        self, guarded: _Guarded, logits: Float32, rows: Sequence[Adjusted], places: Sequence[int]
    ) -> dict[int, str]:
        """One processor on the rows at `places`; returns why some have no logits."""
        failed: dict[int, str] = {}
        sound: list[int] = []
        for place in places:
            sentence = self._broken.get(rows[place].state.request.key)
            if sentence is None:
                sound.append(place)
            else:
                failed[place] = sentence
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
    """A processor behind its thread.

    name: what errors call it.
    is_late: whether it runs behind the temperature.
    needs_order: see `NeedsOrder`.
    """

    def __init__(self, named: NamedProcessor, limit_s: float) -> None:
        self.name = named.name
        self.processor = named.processor
        self.is_late = bool(named.processor.is_argmax_invariant)
        self.needs_order = isinstance(named.processor, NeedsOrder) and named.processor.needs_order
        self._limit_s = limit_s
        self._beside = CallsBeside(named.name)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the processor answers. Raises ProcessorError for whatever else it does."""
        try:
            return self._beside.call(function, *arguments, limit_s=self._limit_s)
        except TimeoutError as error:
            self._beside = CallsBeside(self.name)  # the thread of the one before is stuck
            raise ProcessorError(f"The {self.name} hangs: {error}.") from None
        except SystemExit as error:
            raise ProcessorError(f"The {self.name} called sys.exit({error}).") from None
        except Exception as error:
            logger.error("The %s failed.", self.name, exc_info=error)
            said = " ".join(str(error).split()).rstrip(".")
            raise ProcessorError(f"The {self.name} failed: {type(error).__name__}: {said}.") from error

    def close(self) -> None:
        """End the thread."""
        self._beside.close()


def _changed(guarded: _Guarded, logits: Float32, rows: Sequence[Adjusted], places: Sequence[int]) -> dict[int, str]:
    """Change some rows in place; returns those that became no logits. Raises ProcessorError, and has changed nothing."""
    views = [_view(rows[place]) for place in places]
    own = logits[places]  # a copy: what fails half-way leaves nothing behind
    expected = own.shape

    def apply() -> Any:
        # made by the processor's thread: tensors of this one, which only infers, could not be changed there
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
        # what the model itself computed wrong is the model's error
        if is_wrong and np.isfinite(logits[place].max()):
            failed[place] = (
                f"The {guarded.name} made logits that are NaN or infinite; expected finite numbers and -inf."
            )
        else:
            logits[place] = row
    return failed


def _view(row: Adjusted) -> LogitsRow:
    """What a processor is told of a row."""
    state = row.state
    request = state.request
    prompt = state.tokens[: state.num_prompt_tokens]
    output = state.output(row.index)
    for tokens in (prompt, output):
        tokens.flags.writeable = False
    return LogitsRow(request.key, state.params, prompt, output, row.num_drafted)
