"""An engine of this command that computes bodies again, with the tokens of a known answer as drafts.

Owns: its arguments besides the user's, one request through its application, and continuing from given tokens. Never does: judge
what comes out. Called by: `core verify`, `core diff`.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from core.api.errors import CoreError, UserError
from core.api.messages import EngineOutput
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core.args.arg import Given as GivenArgument
from core_commands.client.endpoint import whole
from core_commands.replay.computed import CURRENT, Computed, Given, Past, ReplayJob, followed, with_given
from core_observers.receipts.issuer import Answers

if TYPE_CHECKING:
    from core_apis.context import ServingContext
    from core_commands.client.app_endpoint import AppEndpoint
    from core_config.arguments.parser import Parsed
    from core_config.resolve import Resolution

NUM_DRAFTS: Final = 64
"""Given tokens that one step verifies. SmolLM2 on two processors: 7.5 times the speed of generation, with 16 only 5.7 times."""
PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
DROPPED: Final = (
    "stream",
    "stream_options",
    "receipt",
    "explain",
    "timings",
    "energy",
    "request_id",
    "background",
    "store",
    "timeout",
)
"""Fields of a body that decide no token, and change only how its answer arrives."""

SCORES: Final = ("logprobs", "top_logprobs", "prompt_logprobs", "include", "echo")
"""Fields that ask for numbers which tokens alone do not give."""


class ReplayEngine:
    """An open engine. context: of its application. resolution: its configuration."""

    def __init__(self, endpoint: AppEndpoint, context: ServingContext, resolution: Resolution) -> None:
        self.context = context
        self.resolution = resolution
        self._endpoint = endpoint
        self._numbers = itertools.count()
        context.generate = followed(context.generate)

    async def compute(
        self, path: str, body: Mapping[str, Any], given: Sequence[Given] = (), seeds: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[Computed]]:
        """Compute a body; return the answer, and what was computed for each prompt. Raises UserError if it is refused.

        given, seeds: for each prompt.
        """
        return await self._ask(path, body, ReplayJob(given, seeds))

    async def renamed(self, body: Mapping[str, Any], *, adapted: bool) -> dict[str, Any]:
        """Return a body without the name of its model, unless that may be an adapter: engines have other names for their model.

        adapted: whether an adapter computed the answer. Its name stays, and is refused where this engine lacks it.
        """
        name, adapters = body.get("model"), self.context.adapters
        is_known = adapters is not None and isinstance(name, str) and await adapters.engine.find(name) is not None
        return {field: value for field, value in body.items() if field != "model" or adapted or is_known}

    async def written(self, path: str, body: Mapping[str, Any], said: Sequence[Answers]) -> dict[str, Any]:
        """Return the answer that these tokens are, without computing anything. said: the answers of each prompt."""
        params = {name: value for name, value in body.items() if name not in SCORES}
        return (await self._ask(path, params, ReplayJob(said=said)))[0]

    async def _ask(self, path: str, body: Mapping[str, Any], job: ReplayJob) -> tuple[dict[str, Any], list[Computed]]:
        token = CURRENT.set(job)
        try:
            plain = msgspec.json.encode({name: value for name, value in body.items() if name not in DROPPED})
            async with self._endpoint.ask("POST", path, plain) as answer:
                data = await whole(answer)
        finally:
            CURRENT.reset(token)
        found = msgspec.json.decode(data)
        if answer.status != 200:
            raise UserError(f"The engine refuses the request: {_sentence(found)}")
        return found, [job.computed[index] for index in sorted(job.computed)]

    async def after(
        self,
        computed: Computed,
        choice: int,
        past: Sequence[int],
        given: Sequence[int] = (),
        *,
        logprobs: int | None = None,
    ) -> AsyncIterator[tuple[list[int], Any]]:
        """Yield (new tokens, their log-probabilities) of one choice, which goes on after `past`, whoever wrote it.

        given: tokens that may follow. Raises CoreError where the answer cannot go on after these tokens.
        """
        call = computed.call
        assert isinstance(call.params, SamplingParams)
        n = computed.request.params.n
        drafts: list[list[int]] = [[] for _ in range(n)]
        drafts[choice] = [*past, *given]
        params = msgspec.structs.replace(
            with_given(call.params, drafts),
            logprobs=logprobs,
            output_kind=RequestOutputKind.DELTA,
            detokenize=True,
            stop=None,
        )
        ended = [EngineOutput("", other, 0, [], finish_reason="abort") for other in range(n) if other != choice]
        begun = [EngineOutput("", choice, 0, list(past))] if past else []
        recorder = Past(computed.request.seed, [[*ended, *begun]] if ended or begun else [])
        terms = replace(call.terms, receipts=None, recorder=recorder, marks_specials=False)
        outputs = self.context.engine.generate(call.prompt, params, f"{call.request_id}-{next(self._numbers)}", terms)
        position = 0
        async with aclosing(outputs):
            async for output in outputs:
                for completion in output.outputs:
                    if completion.index != choice:
                        continue
                    if completion.finish_reason == "error":
                        raise CoreError(str(completion.stop_reason))
                    new = list(completion.token_ids)
                    skipped = max(0, min(len(past) - position, len(new)))
                    position += len(new)
                    if new[skipped:]:
                        rows = None if completion.logprobs is None else completion.logprobs[-len(new[skipped:]) :]
                        yield new[skipped:], rows


Work = Callable[[ReplayEngine], Coroutine[None, None, int]]


def run_replay(parsed: Parsed, work: Work) -> int:
    """Start an engine with the user's arguments, run `work`, and end it. Raises as `run_with_own_engine` does."""
    from core_commands.client.own_engine import run_with_own_engine

    if "speculative_config" in parsed.values:
        raise UserError("--speculative-config: drafts decide no token, and this command brings its own; leave it out.")
    speculation = {"method": "given", "num_speculative_tokens": NUM_DRAFTS, "adaptive": False}
    for name, value in {"speculative_config": speculation, "disable_log_stats": True, "max_num_seqs": 8}.items():
        parsed.values.setdefault(name, GivenArgument(value, "the command"))

    async def run(endpoint: AppEndpoint, resolution: Resolution) -> int:
        return await work(ReplayEngine(endpoint, endpoint.context, resolution))

    return run_with_own_engine(parsed, run)


def path_of(body: Mapping[str, Any]) -> str:
    """Return the path that a body is probably for. Raises UserError."""
    if "messages" in body:
        return PATHS[0]
    if "prompt" in body:
        return PATHS[1]
    if "input" in body:
        return PATHS[2]
    raise UserError(f"The body has neither messages, prompt nor input; name its path: --path {'|'.join(PATHS)}.")


def _sentence(found: Any) -> str:
    error = found.get("error", found) if isinstance(found, dict) else found
    return str(error.get("message", error) if isinstance(error, dict) else error)
