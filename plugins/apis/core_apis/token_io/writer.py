"""The answers of /inference/v1/generate, and token ids that are read as other answers.

Owns: their choices and log probabilities, and outputs made of token ids. Never does: run the engine. Called by: the pipeline,
through the row of `core_apis.routes.token_io`; the route that reads token ids.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping

from fastapi import Response
from msgspec import UNSET

from core.api.messages import EngineOutput, FinishReason
from core.api.sampling_params import SamplingParams
from core_apis.answers.json_pieces import long_list
from core_apis.answers.logprobs import LOWEST, LogprobsFormatter
from core_apis.answers.prompt_output import Outputs, PromptOutput
from core_apis.answers.stream import AnswerStream, num_entries, written
from core_apis.answers.told_facts import add_facts
from core_apis.body import json_response
from core_apis.context import ServingContext
from core_apis.generation import final_output
from core_apis.prepare.prepared import Prompt
from core_apis.protocol.chat import ChatLogprobs
from core_apis.protocol.usage import UsageCounter
from core_apis.token_io.bodies import PreparedTokens
from core_apis.token_io.forms import (
    GenerateChoice,
    GenerateResponse,
    GivenAnswer,
    ScoredToken,
    TokenLogprobs,
    TokenScore,
)
from core_frontend.api.outputs import CompletionOutput, Logprob, PositionLogprobs, RequestOutput
from core_frontend.completion_state import CompletionState
from core_tokens.stop_strings import StopStrings
from core_tokens.tokenizer import Tokenizer


class TokenWriter:
    """The writer of the answer to one request. `usage` counts the tokens that it has written."""

    def __init__(self, context: ServingContext, prepared: PreparedTokens) -> None:
        self.shows_text = prepared.asked.output_mode == "text"
        self.shows_prompt = bool(prepared.asked.return_token_ids)
        self.num_logprobs = prepared.completion.params.logprobs
        self.logprobs = LogprobsFormatter.of(context, prepared.body)
        self.usage = UsageCounter(context.server.enable_prompt_tokens_details)

    def opening(self, chunk: GenerateResponse, output: RequestOutput) -> Iterator[GenerateResponse]:
        """Put the prompt into the first chunk, if it is wanted; there is none before it."""
        if self.shows_prompt:
            chunk.prompt_token_ids = long_list(output.prompt_token_ids)
        return iter(())

    def news(self, prompt_index: int, output: RequestOutput) -> list[GenerateChoice]:
        """Return the choices that `output` adds to."""
        self.usage.add(prompt_index, output)
        return [self._choice(completion) for completion in output.outputs]

    def _choice(self, completion: CompletionOutput) -> GenerateChoice:
        choice = GenerateChoice(
            completion.index,
            list(completion.token_ids),
            completion.finish_reason,
            completion.stop_reason,
            self._scores(completion),
        )
        if self.shows_text:
            choice.text = completion.text
        add_facts(choice, completion)
        return choice

    def _scores(self, completion: CompletionOutput) -> TokenLogprobs | ChatLogprobs | None:
        if self.num_logprobs is None or completion.logprobs is None:
            return None
        if self.shows_text:
            return self.logprobs.long_chat(completion.token_ids, completion.logprobs, self.num_logprobs)
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        return TokenLogprobs([_scored(token_id, position) for token_id, position in pairs])


class TokenAnswer:
    """The answer to one request; see `core_apis.exchange.Answer`. created: seconds since the epoch."""

    def __init__(self, context: ServingContext, prepared: PreparedTokens, answer_id: str, created: int) -> None:
        self._context = context
        self._body = prepared.body
        self._writer = TokenWriter(context, prepared)
        self._head = GenerateResponse(answer_id, prepared.completion.model, created, [])
        self._head.output_mode = prepared.asked.output_mode

    async def whole(self, outputs: Outputs) -> Response:
        """Return the whole answer, as in `Answer`. A long one is serialized in a thread."""
        final = await final_output(outputs)
        return await written(final, lambda: self._whole(final), num_entries(final) + len(final.prompt_token_ids))

    def events(self, first: PromptOutput, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield the events of a streamed answer, as in `Answer`."""
        return self._events(AnswerStream(self._context, self._body, first, outputs))

    async def _events(self, stream: AnswerStream) -> AsyncGenerator[bytes, None]:
        async for event in stream.events(self._head, self._writer):
            yield event
            self._head.prompt_token_ids = UNSET  # the first chunk alone has it

    def _whole(self, final: RequestOutput) -> Response:
        writer, head = self._writer, self._head
        head.choices = sorted(writer.news(0, final), key=lambda choice: choice.index)
        head.usage = writer.usage.usage()
        writer.opening(head, final)
        if final.prompt_logprobs is not None:
            head.prompt_logprobs = writer.logprobs.prompt(final.prompt_logprobs)
        if final.kv_transfer_params is not None:
            head.kv_transfer_params = final.kv_transfer_params
        return json_response(head)


def _scored(token_id: int, position: PositionLogprobs) -> ScoredToken:
    chosen = position.get(token_id, Logprob(LOWEST))
    top = [TokenScore(other, max(entry.logprob, LOWEST), entry.rank) for other, entry in position.items()]
    return ScoredToken(token_id, max(chosen.logprob, LOWEST), chosen.rank, top)


def output_of(
    given: GivenAnswer, prompt: Prompt, params: SamplingParams, tokenizer: Tokenizer, *, marks_specials: bool
) -> RequestOutput:
    """Return the output that an engine with these token ids would have given.

    marks_specials: whether the answer will be parsed, see `CompletionState`.
    """
    stops = StopStrings(params.stop_strings) if params.stop_strings else None
    outputs: list[CompletionOutput] = []
    for choice in given.choices:
        state = CompletionState(choice.index, params, prompt.token_ids, tokenizer, stops, marks_specials=marks_specials)
        # After a stop string the last token belongs to the text; after a stop token it does not.
        ended = choice.finish_reason == "stop" and not isinstance(choice.stop_reason, str)
        reason: FinishReason | None = "stop" if ended else None
        state.update(EngineOutput("", choice.index, 0, choice.token_ids, finish_reason=reason))
        state.abort()  # shows the text that was held back for the sake of stop strings
        completion = state.snapshot(delta=False)
        completion.finish_reason, completion.stop_reason = choice.finish_reason, choice.stop_reason
        if choice.logprobs is not None and choice.logprobs.content is not None:
            scored = choice.logprobs.content[: len(completion.token_ids)]
            completion.logprobs = [dict(_position(entry)) for entry in scored]
        outputs.append(completion)
    return RequestOutput(given.request_id, prompt.text, prompt.token_ids, outputs, finished=True)


def _position(entry: ScoredToken) -> Mapping[int, Logprob]:
    position = {entry.token_id: Logprob(entry.logprob, entry.rank)}
    for other in entry.top_logprobs:
        position.setdefault(other.token_id, Logprob(other.logprob, other.rank))
    return position
