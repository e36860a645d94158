"""What an engine of this command computes for one body, prompt by prompt.

Owns: `ReplayJob` (one body on its way), `Computed` (the outcome of one prompt), and the hook in the application that connects
them. Never does: compare. Called by: the replay engine.

The application serves a body as always. The hook around its `generate` adds the given tokens and the seed to the parameters,
and an issuer that keeps the request and its token ids instead of making a receipt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from core.api.messages import EngineOutput, EngineRequest
from core.api.sampling_params import SamplingParams
from core_apis.watching import Generate, PromptCall
from core_frontend.api.outputs import RequestOutput
from core_observers.receipts.issuer import GIVEN, Answers

Given = Sequence[Sequence[int]]
"""The token ids that are given for one prompt, for each choice."""


UNLIMITED: Final = 2**31 - 1
"""`max_tokens` of a body whose answer only the context limits, which a completion cannot say otherwise."""


@dataclass
class Computed:
    """One prompt that was computed. call: as the engine got it. request: with resolved values. answers: of all choices."""

    call: PromptCall
    request: EngineRequest
    answers: Answers

    def token_ids(self, choice: int) -> list[int]:
        """Return the tokens of one choice."""
        return next((list(tokens) for index, tokens, _ in self.answers if index == choice), [])


@dataclass
class ReplayJob:
    """One body that is computed.

    given, seeds: for each prompt; shorter lists leave the others as they are.
    said: answers of each prompt that are written out instead of being computed; empty: they are computed.
    """

    given: Sequence[Given] = ()
    seeds: Sequence[int] = ()
    said: Sequence[Answers] = ()
    calls: list[PromptCall] = field(default_factory=list)
    computed: dict[int, Computed] = field(default_factory=dict)

    def next_call(self, call: PromptCall) -> tuple[int, PromptCall]:
        """Return the number of the next prompt, and its call with everything that is added to it."""
        index = len(self.calls)
        params = call.params
        if isinstance(params, SamplingParams):
            if params.seed is None and index < len(self.seeds):
                params = msgspec.structs.replace(params, seed=self.seeds[index])
            if params.max_tokens == UNLIMITED:
                params = msgspec.structs.replace(params, max_tokens=None)
            if index < len(self.given):
                params = with_given(params, self.given[index])
        terms = replace(call.terms, receipts=_Keeper(self, index))
        if index < len(self.said):
            terms = replace(terms, recorder=past_of(self.said[index]))
        self.calls.append(replace(call, params=params, terms=terms))
        return index, self.calls[index]


class Past:
    """A recorder with what was computed earlier; see `core_frontend.recording.Recorder`."""

    def __init__(self, seed: int | None, past: list[list[EngineOutput]]) -> None:
        self.seed = seed
        self.past: Sequence[Sequence[EngineOutput]] = past

    def begin(self, seed: int) -> None:
        """Do nothing: nothing is kept."""

    def record(self, outputs: Sequence[EngineOutput]) -> None:
        """Do nothing: nothing is kept."""


def past_of(answers: Answers) -> Past:
    """Return a recorder that says that these answers were computed whole."""
    step = [
        EngineOutput("", index, 0, list(tokens), finish_reason="length" if reason == "length" else "stop")
        for index, tokens, reason in answers
    ]
    return Past(None, [step])


class _Keeper:
    """An issuer that keeps what a receipt is made of."""

    def __init__(self, job: ReplayJob, index: int) -> None:
        self._job = job
        self._index = index

    def issue(self, request: EngineRequest, answers: Answers) -> None:
        """Keep the finished request."""
        self._job.computed[self._index] = Computed(self._job.calls[self._index], request, answers)


CURRENT: Final[ContextVar[ReplayJob]] = ContextVar("CURRENT")
"""The job of the request that this task serves."""


def with_given(params: SamplingParams, given: Given) -> SamplingParams:
    """Return parameters with the tokens of an answer, which only make it quicker."""
    extra: dict[str, Any] = dict(params.extra_args or {})
    extra[GIVEN] = [list(tokens) for tokens in given]
    return msgspec.structs.replace(params, extra_args=extra)


def followed(generate: Generate) -> Generate:
    """Wrap an application's `generate`: requests of a job are changed and kept as the job says."""

    def run(call: PromptCall) -> AsyncGenerator[RequestOutput, None]:
        job = CURRENT.get(None)
        return generate(call if job is None else job.next_call(call)[1])

    return run
