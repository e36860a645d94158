"""The work that a front has sent to engines, in seconds.

Owns: `Work`: an estimate for each live request, what is left of it, and how fast engines work. Never does: choose an engine.
Called by: the group of engines, with every request and every output.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.api.messages import EngineOutput, EngineRequest

OUTPUT_WEIGHT = 4
"""Work of an output token, in prompt tokens. Balance does not depend on it as long as all engines are alike."""
FIRST_RATE = 2000.0
"""Prompt tokens a second that an engine is expected to compute before any was measured."""
MEMORY_S = 2.0
"""Seconds of work over which the rate is averaged."""
TYPICAL_OUTPUT = 128.0
"""Output tokens that a request is expected to want, before any has ended."""


@dataclass(slots=True)
class Task:
    """One live request. engine: where it is. prompt, rest: work until its first token, and after that. choices: that run."""

    engine: int
    prompt: float
    rest: float
    choices: int


class Work:
    """The live requests of one front, by engine.

    rate: work a second of one engine.
    """

    def __init__(self, num_engines: int) -> None:
        self.tasks: dict[str, Task] = {}
        self.rate = FIRST_RATE
        self._left = [0.0] * num_engines
        self._busy_since = [0.0] * num_engines
        self._typical = TYPICAL_OUTPUT

    def seconds(self, engine: int) -> float:
        """Return the seconds of work that an engine has left."""
        return self._left[engine] / self.rate

    @property
    def typical_s(self) -> float:
        """Seconds of work of a usual request."""
        return self._typical * OUTPUT_WEIGHT / self.rate

    def begin(self, requests: Sequence[EngineRequest], engine: int, cached: int) -> Task:
        """Note a request that is sent to an engine. cached: tokens of its prompt that the engine is expected to have."""
        first = requests[0]
        given = sum(len(request.resume.output_token_ids) for request in requests if request.resume is not None)
        prompt = max(len(first.prompt_token_ids) + given - cached, 1)
        most = 0 if first.pooling is not None else first.params.max_tokens or 0
        rest = min(most, self._typical) * len(requests) * OUTPUT_WEIGHT
        task = self.tasks[first.request_id] = Task(engine, prompt, rest, len(requests))
        if self._left[engine] <= 0.0:
            self._busy_since[engine] = time.monotonic()
        self._left[engine] += prompt + rest
        return task

    def done(self, outputs: Iterable[EngineOutput], engine: int) -> None:
        """Note what an engine has computed."""
        work = 0.0
        for output in outputs:
            task = self.tasks.get(output.request_id)
            if task is None:
                continue
            used = min(len(output.token_ids) * OUTPUT_WEIGHT, task.rest)
            task.rest -= used
            work += used + task.prompt
            self._left[engine] -= used + task.prompt
            task.prompt = 0.0
            if output.finish_reason is not None:
                if output.finish_reason != "abort" and output.pooled == b"":
                    self._typical += 0.05 * (output.start + len(output.token_ids) - self._typical)
                self.end_choice(output.request_id)
        self._measure(work, engine)

    def end_choice(self, request_id: str) -> None:
        """Note the end of one choice of a request; with the last one it is forgotten."""
        task = self.tasks.get(request_id)
        if task is None:
            return
        task.choices -= 1
        if task.choices <= 0:
            self.forget(request_id)

    def forget(self, request_id: str) -> None:
        """Drop a request, with its work."""
        task = self.tasks.pop(request_id, None)
        if task is not None:
            self._left[task.engine] = max(self._left[task.engine] - task.prompt - task.rest, 0.0)

    def at(self, engine: int) -> list[str]:
        """Return the live requests of an engine."""
        return [name for name, task in self.tasks.items() if task.engine == engine]

    def _measure(self, work: float, engine: int) -> None:
        """Follow the rate of an engine that has done this much since it was last asked."""
        now = time.monotonic()
        seconds = now - self._busy_since[engine]
        self._busy_since[engine] = now
        if work > 0.0 and 0.0 < seconds < MEMORY_S:
            share = seconds / MEMORY_S
            self.rate += share * (work / seconds - self.rate)
