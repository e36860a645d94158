"""The offline class: `LLM(model=...).generate(prompts, params)`.

Owns: `LLM`, with vLLM's names for arguments and results. Never does: step, check requests or read checkpoints itself.
Called by: users.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from core.api.errors import RequestError
from core.api.pooling import PoolingConfig
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core_frontend.api.explanation import Source
from core_frontend.api.outputs import RequestOutput
from core_frontend.api.pooling_outputs import PooledOutput
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.batch_run import Progress, begin_batch, finish_batch, run_batch
from core_frontend.io.pool import BlockingIO, io_settings
from core_frontend.library.beam_methods import BeamMethods
from core_frontend.library.chat_batch import ChatBatch, Conversation, as_conversations
from core_frontend.library.keywords import refuse_keywords
from core_frontend.library.llm_engine import LLMEngine
from core_frontend.library.lora_request import Adapters
from core_frontend.library.pooling_methods import PoolingMethods
from core_frontend.library.transcribing import TranscriptionMethods
from core_frontend.library.worker_methods import WorkerMethods
from core_frontend.prompts.default_params import changed_names, default_sampling_params, sampling_sources
from core_frontend.prompts.input_processor import ProcessedInput
from core_frontend.prompts.prompt_parser import PromptInput, as_batch
from core_frontend.prompts.text_pairs import TextPairs
from core_frontend.prompts.tokenizing import tokenized_together
from core_frontend.request_terms import ExplainTerms, RequestTerms
from core_frontend.sessions.offline import LLMSession, SessionPrompt
from core_frontend.sessions.turns import Turn
from core_tokens.chat.chat_template import ChatTemplate, has_answers
from core_tokens.script_tokenizer import chat_template_of

if TYPE_CHECKING:
    from core_formats.conversation_prompts import ConversationPrompts
    from core_formats.selection import AnswerFormat
    from core_observers.receipts.issuer import ReceiptIssuer


class LLM(PoolingMethods, LLMEngine, TranscriptionMethods, BeamMethods, WorkerMethods):
    """A model in this process.

    model: path or hub name; None is the embedded default.
    tokenizer: where the tokenizer comes from, if not from the model.
    Every other keyword is an engine argument under its command-line name with underscores (`max_model_len`, ...).
    Raises UserError (ConfigError with all problems together, CheckpointError) or PluginError if it cannot be built.

    One thread at a time. `close` it, or use it as a context manager, to release its memory.
    """

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Progress = True,
        lora_request: Adapters = None,
        *,
        priority: Sequence[int] | None = None,
        explain: bool = False,
        receipt: bool = False,
        **options: Any,
    ) -> list[RequestOutput]:
        """Complete prompts; return the outputs in the order of the prompts.

        prompts: one or a list of: text, token ids, {"prompt": text}, {"prompt_token_ids": ids}.
        sampling_params: one for all, one for each, or None for the checkpoint's defaults.
        use_tqdm: whether to show a progress bar, or a callable that makes one.
        lora_request: the adapter of all prompts, or one for each; None: the model itself.
        priority: one for each prompt, lower first, under the priority policy.
        explain: whether each output says how it came about (`RequestOutput.explain`, docs/explain.md).
        receipt: whether each output has a receipt (`RequestOutput.receipt`, docs/receipts.md).
        options: vLLM's other keywords; anything but None is refused by name.
        Raises RequestError before anything runs if any prompt or parameter is wrong.
        """
        refuse_keywords(options, self.generate)
        batch = as_batch(prompts)
        params = self._spread(sampling_params, len(batch))
        priority = _priorities(priority, len(batch))
        told = self._explain_terms(params, given=sampling_params is not None) if explain else None
        tokenized = tokenized_together(batch, self._tokenizer)
        return self._run(tokenized, params, priority, use_tqdm, told, adapters=lora_request, receipt=receipt)

    def enqueue(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        lora_request: Adapters = None,
        priority: Sequence[int] | None = None,
        **options: Any,
    ) -> list[str]:
        """Queue prompts, which `wait_for_completion` runs. Return the ids of the requests; for arguments see
        `generate`.

        use_tqdm: no effect: nothing runs yet.
        """
        refuse_keywords(options, self.enqueue)
        batch = as_batch(prompts)
        params = self._spread(sampling_params, len(batch))
        priority = _priorities(priority, len(batch))
        tokenized = tokenized_together(batch, self._tokenizer)
        entries = self._checked(tokenized, params, priority, adapters=lora_request)
        return begin_batch(self._live_client(), self._output, entries)

    def wait_for_completion(
        self, output_type: type[Any] | tuple[type[Any], ...] | None = None, *, use_tqdm: Progress = True
    ) -> list[RequestOutput]:
        """Run everything queued by `enqueue` or `add_request`; return the final outputs, in the order of the queue.

        output_type: required type of the outputs, such as `RequestOutput`; None: any. Raises TypeError for another one.
        """
        outputs = finish_batch(self._live_client(), self._output, use_tqdm)
        for output in outputs:
            if output_type is not None and not isinstance(output, output_type):
                raise TypeError(f"request {output.request_id} gave a {type(output).__name__}, expected {output_type}")
        return outputs

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Progress = True,
        lora_request: Adapters = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        explain: bool = False,
        receipt: bool = False,
        session: SessionPrompt | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer conversations, each a list of {"role": ..., "content": ...}; one or a list of them.

        chat_template: Jinja source, or the name of one of the checkpoint's templates; None is the engine argument, or
            the checkpoint's default one, or with tools its one for tools. The other options go to the template.
        tools: definitions in OpenAI's form, functions or custom ones. Each answer is then parsed into text, reasoning
            and calls: `output.outputs[0].parts`.
        tool_choice: `auto` (the default), `none`, `required`, or {"type": "function", "function": {"name": ...}}. The
            answer is constrained to it, and to the schemas of tools that are `strict`.
        parallel_tool_calls: whether an answer may hold several calls.
        session: set by the chat of a session (`LLM.session`).
        lora_request, explain, receipt, options: see `generate`.
        """
        refuse_keywords(options, self.chat)
        conversations = as_conversations(messages)
        params = self._spread(sampling_params, len(conversations))
        template = chat_template or self._chat_template
        use = None if not tools and tool_choice is None else (tools or (), tool_choice, parallel_tool_calls)
        batch = self._chat_batch(template, use, chat_template_kwargs or {})
        for conversation, wanted in zip(conversations, params, strict=True):
            batch.add(conversation, wanted, begin=add_generation_prompt, resume=continue_final_message)
        if session is not None:
            session.conversation(batch)
        told: list[ExplainTerms] | None = None
        if explain:
            told = self._explain_terms(batch.params, given=sampling_params is not None, conversations=conversations)
            told = [replace(one, control_text=text) for one, text in zip(told, batch.control_text, strict=True)]
        priority = [0] * len(conversations)
        outputs = self._run(
            *(batch.prompts, batch.params, priority, use_tqdm, told),
            marks_specials=batch.is_parsed,
            adapters=lora_request,
            receipt=receipt,
        )
        batch.take_apart(outputs)
        return outputs

    def _chat_batch(
        self,
        chat_template: str | None,
        use: tuple[Sequence[Mapping[str, Any]], str | Mapping[str, Any] | None, bool] | None,
        variables: Mapping[str, Any],
    ) -> ChatBatch:
        """Return an empty batch of conversations. Raises RequestError.

        use: tools, their choice, and whether several may be called; None: no tools.
        variables: for the template.
        """
        tokenizer = self._need_tokenizer()
        template = chat_template_of(tokenizer, chat_template, self._media.shown)
        plan = None
        prompts: ChatTemplate | ConversationPrompts = template
        if use is not None:
            from core_formats.conversation_prompts import ConversationPrompts
            from core_frontend.whole_answer import tool_plan

            served = self._answer_format(chat_template)
            plan = tool_plan(*use, template, served)
            prompts = ConversationPrompts(template, served)
        has_states = any(group.kind == "state" for group in self._config.cache.groups)
        return ChatBatch(tokenizer, prompts, plan, variables, media=self._media, keeps_edges=has_states)

    def session(self) -> LLMSession:
        """Return a new session: a conversation whose earlier answers keep the tokens that were sampled.

        Its `chat` and `generate` return one output; `fork` and `rewind` go back to earlier turns.
        """
        return LLMSession(self)

    def session_prompt(self, turns: Sequence[Turn]) -> SessionPrompt:
        """Return the prompt of a session's next call."""
        return SessionPrompt(turns, self._need_tokenizer(), self._config.model.max_model_len)

    def _pool(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: PoolingParams | Sequence[PoolingParams] | None,
        use_tqdm: Progress,
        priority: Sequence[int] | None,
        adapters: Adapters = None,
    ) -> list[PooledOutput]:
        batch = as_batch(prompts)
        if not isinstance(params, Sequence):
            params = [params or PoolingParams()] * len(batch)
        _check_count("pooling_params", params, len(batch))
        priority = _priorities(priority, len(batch))
        tokenized = tokenized_together(batch, self._tokenizer)
        outputs = self._run(tokenized, params, priority, use_tqdm, None, adapters=adapters)
        return [output for output in outputs if isinstance(output, PooledOutput)]

    @property
    def _pooling_config(self) -> PoolingConfig:
        config = self._config.model.pooling
        if config is None:
            raise RequestError(
                "This model generates text (--runner generate); load it with --runner pooling for vectors."
            )
        return config

    def _io_processor(self) -> BlockingIO:
        self._live_client()
        if self._io is None:
            settings = io_settings(self._config)
            if settings is None:
                raise RequestError("data is for an IO processor, and there is none; name one with io_processor_plugin.")
            self._io = BlockingIO(settings)
        return self._io

    def _pairs(self, chat_template: str | None) -> TextPairs:
        template = chat_template or self._chat_template
        return TextPairs(self._pooling_config, self._need_tokenizer(), self._config.model.max_model_len, template)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of `generate` if none are given: the checkpoint's recommendations, else our defaults."""
        return default_sampling_params(self._config.model)

    def _spread(self, params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
        """Return one `SamplingParams` for each prompt."""
        if params is None:
            params = self.get_default_sampling_params()
        if not isinstance(params, Sequence):
            return [params] * count
        if len(params) != count:
            raise RequestError(
                f"sampling_params has {len(params)} entries for {count} prompts; pass one object, or one for each prompt.",
                param="sampling_params",
            )
        return list(params)

    def _explain_terms(
        self, params: list[SamplingParams], *, given: bool, conversations: Sequence[Conversation] = ()
    ) -> list[ExplainTerms]:
        """Return the facts that explanations need, for each prompt.

        given:         whether the caller made `params`.
        conversations: those of the prompts; none: they are plain texts.
        """
        told: list[ExplainTerms] = []
        for index, one in enumerate(params):
            sources: dict[str, Source] = {}
            if isinstance(one, SamplingParams):  # anything else is refused a moment later
                names = changed_names(one) if given else []
                sources = sampling_sources(one, names, self._config.model)
            first_turn = bool(conversations) and not has_answers(conversations[index])
            told.append(ExplainTerms(sources, first_turn))
        return told

    def _receipt_issuer(self) -> ReceiptIssuer:
        """Return the issuer of receipts, made at the first call."""
        if self._receipts is None:
            from core_frontend.receipts import own_issuer

            self._receipts = own_issuer(self._config, self._live_client(), self._tokenizer, self._chat_template)
        return self._receipts

    def _answer_format(self, chat_template: str | None) -> AnswerFormat:
        """Return the model's form of answers, determined at the first call."""
        from core_formats.selection import served_format

        tokenizer = self._need_tokenizer()
        own = None if chat_template is None else tokenizer.named_templates.get(chat_template, chat_template)
        return served_format(self._answers, tokenizer, own, self._config.model.eos_token_ids)

    def _run(
        self,
        prompts: list[PromptInput],
        params: Sequence[SamplingParams | PoolingParams],
        priority: Sequence[int],
        use_tqdm: Progress,
        explain: Sequence[ExplainTerms] | None,
        *,
        marks_specials: bool = False,
        adapters: Adapters = None,
        receipt: bool = False,
    ) -> list[RequestOutput]:
        client = self._live_client()
        self._check_awake()
        if self.has_unfinished_requests():
            raise RequestError(
                "Requests of add_request or enqueue are unfinished; call step until they end, call wait_for_completion, or "
                "abort them."
            )
        entries = self._checked(prompts, params, priority, explain, marks_specials=marks_specials, adapters=adapters)
        if receipt:
            issuer = self._receipt_issuer()
            for entry in entries:
                entry.receipts = issuer
        return run_batch(client, self._output, entries, use_tqdm)

    def _checked(
        self,
        prompts: list[PromptInput],
        params: Sequence[SamplingParams | PoolingParams],
        priority: Sequence[int],
        explain: Sequence[ExplainTerms] | None = None,
        *,
        marks_specials: bool = False,
        adapters: Adapters = None,
    ) -> list[ProcessedInput]:
        """Return all prompts, checked. Raises RequestError before anything runs."""
        entries = []
        facts = self._spread_adapters(adapters, len(prompts))
        for index in range(len(prompts)):
            told = None if explain is None else explain[index]
            terms = RequestTerms(
                priority=priority[index],
                arrival=time.monotonic(),
                marks_specials=marks_specials,
                explain=told,
                adapter=facts[index],
            )
            entry = self._process(index, prompts, params[index], terms)
            entries.append(entry)
        return entries

    def _process(
        self, index: int, prompts: list[PromptInput], params: SamplingParams | PoolingParams, terms: RequestTerms
    ) -> ProcessedInput:
        """Return one checked prompt. Raises RequestError, which names the prompt if there are several."""
        try:
            if isinstance(params, SamplingParams):
                params = msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
            return self._check(str(next(self._ids)), prompts[index], params, terms)
        except RequestError as error:
            if len(prompts) == 1:
                raise
            raise RequestError(
                f"Prompt {index}: {error}", param=error.param, status=error.status, code=error.code
            ) from error


def _priorities(given: Sequence[int] | None, count: int) -> Sequence[int]:
    """Return one priority for each prompt. Raises RequestError."""
    _check_count("priority", given, count)
    return given or [0] * count


def _check_count(name: str, given: Sequence[Any] | None, count: int) -> None:
    """Raise RequestError unless there is one entry for each prompt."""
    if given is None:
        return
    if not isinstance(given, Sequence):
        raise RequestError(
            f"{name} is a {type(given).__name__}; expected a list with one entry for each prompt.", param=name
        )
    if len(given) != count:
        raise RequestError(f"{name} has {len(given)} entries for {count} prompts; pass one for each.", param=name)
