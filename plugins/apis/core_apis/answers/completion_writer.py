"""Conversion of engine outputs into the choices of /v1/completions.

Owns: echo, logprobs and text offsets, indices of several prompts. Never does: run anything. Called by: the pipeline,
through the row of `core_apis.routes.completions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

from fastapi import Response
from msgspec import UNSET

from core_apis.answers.extras import Extras
from core_apis.answers.json_pieces import long_list
from core_apis.answers.logprobs import LogprobsFormatter
from core_apis.answers.prompt_output import Outputs, PromptOutput
from core_apis.answers.stream import (
    LIGHT,
    OUTPUT_COST,
    AnswerStream,
    ShownPrompts,
    in_thread_if,
    num_entries,
    written,
)
from core_apis.answers.text_offsets import TextOffsets
from core_apis.answers.told_facts import add_facts
from core_apis.body import json_response
from core_apis.context import ServingContext
from core_apis.prepare.prepared import PreparedCompletion, Prompt
from core_apis.protocol.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
from core_apis.protocol.usage import UsageCounter
from core_frontend.api.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from core_frontend.prompt_logprobs import PromptLogprobs


class CompletionWriter:
    """The writer of the answer to one HTTP request. `usage` counts the tokens that it has written."""

    def __init__(self, context: ServingContext, request: CompletionRequest, prompts: Sequence[Prompt]) -> None:
        self.request = request
        self.prompts = prompts
        self.tokenizer = context.engine.tokenizer
        self.logprobs = LogprobsFormatter.of(context, request)
        self.usage = UsageCounter(context.server.enable_prompt_tokens_details)
        self._offsets: dict[int, TextOffsets] = {}
        self._prompt_logprobs: dict[int, Sequence[PositionLogprobs | None]] = {}

    def opening(self, chunk: CompletionResponse, output: RequestOutput) -> list[CompletionResponse]:
        """Return nothing: the first chunk of a completion has text."""
        return []

    def news(self, prompt_index: int, output: RequestOutput) -> list[CompletionChoice]:
        """Return the choices that `output` adds to, without empty ones."""
        return [choice for choice in self.choices(prompt_index, output) if self._tells(choice)]

    def choices(self, prompt_index: int, output: RequestOutput) -> list[CompletionChoice]:
        """Return the choices in `output`, each with its new part only."""
        if self.request.prompt_only:
            _drop_generated(output)
        self.usage.add(prompt_index, output)
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[prompt_index] = output.prompt_logprobs
        choices: list[CompletionChoice] = []
        for completion in output.outputs:
            choices.append(self._choice(prompt_index, output, completion))
        return choices

    def free(self) -> None:
        """Release the log probabilities of the prompts once nothing more will be written. Slow if there are many."""
        for positions in self._prompt_logprobs.values():
            if isinstance(positions, PromptLogprobs):
                positions.free()

    def _tells(self, choice: CompletionChoice) -> bool:
        if choice.text or choice.finish_reason or choice.logprobs or choice.sampling_mask is not UNSET:
            return True
        return bool(self.request.return_token_ids)

    def _choice(self, prompt_index: int, output: RequestOutput, completion: CompletionOutput) -> CompletionChoice:
        index = prompt_index * (self.request.n or 1) + completion.index
        first = index not in self._offsets
        if first:
            self._offsets[index] = self._text_offsets(output)
        text = completion.text
        token_ids = list(completion.token_ids)
        positions: list[PositionLogprobs | None] = list(completion.logprobs or ())
        if first and self.request.echo:
            text = self._prompt_text(prompt_index, output) + text
            token_ids = output.prompt_token_ids + token_ids
            scored = list(self._prompt_logprobs.get(prompt_index, ()))
            # An answer that ends before its first token belongs to a prompt that was not scored, or only in part.
            unscored = [None] * (len(output.prompt_token_ids) - len(scored))
            positions = [*scored, *unscored, *positions]
        choice = CompletionChoice(
            index=index,
            text=text,
            logprobs=self._completion_logprobs(index, token_ids, positions),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
        )
        self._add_extras(choice, prompt_index, output, completion, first=first)
        return choice

    def _add_extras(
        self,
        choice: CompletionChoice,
        prompt_index: int,
        output: RequestOutput,
        completion: CompletionOutput,
        *,
        first: bool,
    ) -> None:
        """Add token ids and log probabilities of the prompt, if the request wants them.

        first: whether the choice begins here.
        """
        add_facts(choice, completion)
        if self.request.return_token_ids:
            choice.token_ids = list(completion.token_ids)
            if first and self.prompts[prompt_index].embeds is None:
                choice.prompt_token_ids = long_list(output.prompt_token_ids)
        prompt_logprobs = self._prompt_logprobs.get(prompt_index)
        if self.request.prompt_logprobs is not None and prompt_logprobs is not None:
            choice.prompt_logprobs = self.logprobs.prompt(prompt_logprobs)

    @property
    def _skips_special_tokens(self) -> bool:
        return self.request.skip_special_tokens is not False

    def _text_offsets(self, output: RequestOutput) -> TextOffsets:
        """Return the character counter of one choice, whose text continues the prompt or begins with it."""
        before = [] if self.request.echo else output.prompt_token_ids
        return TextOffsets(self.tokenizer, before, self._skips_special_tokens)

    def _completion_logprobs(
        self, index: int, token_ids: list[int], positions: list[PositionLogprobs | None]
    ) -> CompletionLogprobs | None:
        if self.request.logprobs is None:
            return None
        offsets = self._offsets[index].take(token_ids)
        found = self.logprobs.completion(token_ids, positions, offsets)
        return CompletionLogprobs(
            long_list(found.tokens),
            long_list(found.token_logprobs),
            long_list(found.top_logprobs),
            long_list(found.text_offset),
        )

    def _prompt_text(self, prompt_index: int, output: RequestOutput) -> str:
        """Return the prompt as the user wrote it, unless it was truncated or came as tokens."""
        prompt = self.prompts[prompt_index]
        was_cut = len(prompt.token_ids) != len(output.prompt_token_ids)
        if prompt.text is not None and not was_cut:
            return prompt.text
        return self.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=self._skips_special_tokens)


class CompletionAnswer:
    """The answer to one completion request; see `core_apis.exchange.Answer`. created: seconds since the epoch."""

    def __init__(self, context: ServingContext, prepared: PreparedCompletion, answer_id: str, created: int) -> None:
        self._context = context
        self._body = prepared.body
        self._writer = CompletionWriter(context, prepared.body, prepared.prompts)
        self._head = CompletionResponse(
            id=answer_id,
            object="text_completion",
            created=created,
            model=prepared.model,
            choices=[],
        )

    async def whole(self, outputs: Outputs) -> Response:
        """Return the whole answer, as in `Answer`. A long one is serialized in a thread."""
        num_written = await self._fill(outputs)
        self._head.system_fingerprint = self._context.fingerprint
        return await in_thread_if(num_written > LIGHT, lambda: json_response(self._head))

    def events(self, first: PromptOutput, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield the events of a streamed answer, as in `Answer`."""
        self._head.system_fingerprint = self._context.fingerprint
        return AnswerStream(self._context, self._body, first, outputs).events(self._head, self._writer)

    async def _fill(self, outputs: Outputs) -> int:
        """Put the choices of all outputs into the answer; return their number of tokens and log probabilities.

        Outputs of several prompts may be ready at the same time; other requests get their turn between them.
        """
        writer = self._writer
        num_written = cost = 0
        shown = ShownPrompts(writer.request)
        choices: list[CompletionChoice] = []
        extras = Extras(writer.request)
        async with aclosing(outputs):
            async for prompt_index, output in outputs:
                extras.add(prompt_index, output)
                if output.kv_transfer_params is not None:
                    self._head.kv_transfer_params = output.kv_transfer_params
                num_new = num_entries(output) + shown.num_new(prompt_index, output)
                choices += await written(output, partial(writer.choices, prompt_index, output), num_new)
                num_written += num_new
                cost += OUTPUT_COST + num_new
                if cost > LIGHT:
                    await asyncio.sleep(0)
                    cost = 0
        await in_thread_if(num_written > LIGHT, writer.free)
        self._head.choices = sorted(choices, key=lambda choice: choice.index)
        self._head.usage = writer.usage.usage()
        extras.tell(self._head)
        return num_written


def _drop_generated(output: RequestOutput) -> None:
    """Remove the single token that the engine had to generate although the request wanted none."""
    for completion in output.outputs:
        completion.text = ""
        completion.token_ids = []
        completion.stop_reason = None
        if completion.logprobs is not None:
            completion.logprobs = []
        if completion.finish_reason is not None:
            completion.finish_reason = "length"
