"""The offline class: `LLM(model=...).generate(prompts, params)`.

Owns: `LLM`, with vLLM's names for arguments and results. Never does: step, check requests or read checkpoints itself.
Called by: users.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from core.api.config import EngineConfig
from core.api.errors import ConfigError, EngineDeadError, PluginError, RequestError
from core.api.explanation import Source
from core.api.messages import SchedulerStats
from core.api.outputs import RequestOutput
from core.api.pooling_outputs import PooledOutput
from core.api.pooling_params import PoolingParams
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core.engine.batch_run import Progress, run_batch
from core.engine.default_params import changed_names, default_sampling_params, sampling_sources
from core.engine.inproc import InprocClient
from core.engine.input_processor import InputProcessor, ProcessedInput
from core.engine.output_processor import OutputProcessor
from core.engine.prompt_parser import PromptInput, as_batch
from core.engine.request_terms import ExplainTerms, RequestTerms
from core.engine.tokenizing import load_tokenizer
from core.grammars.compiler import GrammarCompiler
from core.llm_pooling import PoolingMethods
from core.tokens.chat_template import ChatTemplate, has_answers
from core.tokens.templates import TOOL_TEMPLATE
from core.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from core.config.resolve import Resolution
    from core.formats.answer_plan import AnswerPlan
    from core.formats.selection import AnswerFormat

logger = logging.getLogger(__name__)

Message = Mapping[str, Any]
Conversation = Sequence[Message]


class LLM(PoolingMethods):
    """A model in this process.

    model: path or hub name; None is the embedded default.
    tokenizer: where the tokenizer comes from, if not from the model.
    Every other keyword is an engine argument under its command-line name with underscores (`max_model_len`, ...).
    Raises UserError (ConfigError with all problems together, CheckpointError) or PluginError when it cannot be built.

    One thread at a time. `close` it, or use it as a context manager, to give its memory back.
    """

    def __init__(self, model: str | None = None, *, tokenizer: str | None = None, **engine_arguments: Any) -> None:
        from core.config.resolve import resolve

        named = {"model": model, "tokenizer": tokenizer}
        given = {name: value for name, value in named.items() if value is not None}
        resolution = resolve(given | engine_arguments, context="llm")
        for warning in resolution.warnings:
            logger.warning("%s", warning)
        self._ids = itertools.count()
        self._client: InprocClient | None = None
        while self._client is None:
            try:
                self._build(resolution)
            except PluginError as error:
                resolution = resolution.without(error)

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        priority: Sequence[int] | None = None,
        explain: bool = False,
    ) -> list[RequestOutput]:
        """Complete prompts; the outputs come in the order of the prompts.

        prompts: one or a list of: text, token ids, {"prompt": text}, {"prompt_token_ids": ids}.
        sampling_params: one for all, one for each, or None for the checkpoint's defaults.
        use_tqdm: whether to show a progress bar, or a callable that makes one.
        priority: one for each prompt, lower first, under the priority policy.
        explain: whether each output says how it came about (`RequestOutput.explain`, docs/explain.md).
        Raises RequestError before anything runs when any prompt or parameter is wrong.
        """
        batch = as_batch(prompts)
        params = self._spread(sampling_params, len(batch))
        _check_count("priority", priority, len(batch))
        if priority is None:
            priority = [0] * len(batch)
        told = self._explain_terms(params, given=sampling_params is not None) if explain else None
        return self._run(self._tokenize(batch), params, priority, use_tqdm, told)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        explain: bool = False,
    ) -> list[RequestOutput]:
        """Answer conversations, each a list of {"role": ..., "content": ...}; one or a list of them.

        chat_template: Jinja source, or the name of one of the checkpoint's templates; None is the checkpoint's default one,
        or with tools its one for tools. The other options go to the template.
        tools: definitions in OpenAI's form, functions or custom ones. Each answer then is taken apart into text, reasoning
        and calls: `output.outputs[0].parts`.
        tool_choice: `auto` (the default), `none`, `required`, or {"type": "function", "function": {"name": ...}}. The answer
        is held to it, and to the schemas of tools that are `strict`.
        parallel_tool_calls: whether an answer may hold several calls.
        explain: see `generate`.
        """
        conversations = as_conversations(messages)
        params = self._spread(sampling_params, len(conversations))
        tokenizer = self.get_tokenizer()
        template = _template(tokenizer, chat_template)
        prompts: list[PromptInput] = []
        plans: list[AnswerPlan] = []
        plan = None
        if tools or tool_choice is not None:
            from core.formats.whole_answer import take_apart, tool_plan

            served = self._answer_format(chat_template)
            plan = tool_plan(tools or (), tool_choice, parallel_tool_calls, template, served)
        for index, conversation in enumerate(conversations):
            text = template.render(
                list(conversation),
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=None if plan is None else plan.use.shown,
                **(chat_template_kwargs or {}),
            )
            ids = tokenizer.encode(text, add_special_tokens=False)  # the template wrote them out
            prompts.append({"prompt": text, "prompt_token_ids": ids})
            if plan is not None and plan.format is not None:
                own_plan = plan.resuming(conversation[-1]) if continue_final_message else plan
                params[index] = own_plan.held(params[index], text)
                plans.append(own_plan)
        told: list[ExplainTerms] | None = None
        if explain:
            told = self._explain_terms(params, given=sampling_params is not None, conversations=conversations)
        outputs = self._run(prompts, params, [0] * len(prompts), use_tqdm, told, marks_specials=bool(plans))
        for index, own_plan in enumerate(plans):
            prompt = str(outputs[index].prompt)
            for completion in outputs[index].outputs:
                take_apart(completion, own_plan, prompt, keeps_specials=not params[index].skip_special_tokens)
        return outputs

    def _pool(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: PoolingParams | Sequence[PoolingParams] | None,
        use_tqdm: Progress,
        priority: Sequence[int] | None,
    ) -> list[PooledOutput]:
        batch = as_batch(prompts)
        if not isinstance(params, Sequence):
            params = [params or PoolingParams()] * len(batch)
        _check_count("pooling_params", params, len(batch))
        _check_count("priority", priority, len(batch))
        outputs = self._run(self._tokenize(batch), params, priority or [0] * len(batch), use_tqdm, None)
        return [output for output in outputs if isinstance(output, PooledOutput)]

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of `generate` when none are given: the checkpoint's recommendations, else our defaults."""
        return default_sampling_params(self._config.model)

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ConfigError when the model has none."""
        if self._tokenizer is None:
            raise ConfigError(
                [f"The model {self._config.model.model!r} runs without a tokenizer; name one: tokenizer=..."]
            )
        return self._tokenizer

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False when blocks are still in use."""
        return self._live_client().reset_prefix_cache()

    def stats(self) -> SchedulerStats:
        """State of the scheduler: requests, KV usage, prefix hits, preemptions, drafts."""
        return self._live_client().stats()

    def close(self) -> None:
        """Give the engine's memory and threads back; may be called twice."""
        client = self._client
        self._client = None
        if client is not None:
            self._grammars.close()
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _build(self, resolution: Resolution) -> None:
        self._config: EngineConfig = resolution.engine
        self._answers = resolution.server.answers
        self._tokenizer = load_tokenizer(resolution.manifest.tokenizer, self._config.model)
        self._input = InputProcessor(self._config.model, self._tokenizer, self._config.cache.explains)
        self._output = OutputProcessor(self._tokenizer, self._config.scheduler.stream_interval)
        self._grammars = GrammarCompiler(self._config, self._tokenizer)
        self._client = InprocClient(self._config)

    def _live_client(self) -> InprocClient:
        if self._client is None:
            raise EngineDeadError("This LLM was closed; build another one.")
        return self._client

    def _spread(self, params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
        """One for each prompt."""
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

    def _tokenize(self, batch: list[PromptInput]) -> list[PromptInput]:
        """Texts are tokenized together, which uses all threads of the tokenizer; other prompts stay as they are."""
        texts = [prompt for prompt in batch if isinstance(prompt, str)]
        if self._tokenizer is None or len(texts) < 2:
            return batch
        encoded = iter(self._tokenizer.encode_batch(texts))
        tokenized: list[PromptInput] = []
        for prompt in batch:
            if isinstance(prompt, str):
                tokenized.append({"prompt": prompt, "prompt_token_ids": next(encoded)})
            else:
                tokenized.append(prompt)
        return tokenized

    def _explain_terms(
        self, params: list[SamplingParams], *, given: bool, conversations: Sequence[Conversation] = ()
    ) -> list[ExplainTerms]:
        """What explanations need to know, for each prompt.

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

    def _answer_format(self, chat_template: str | None) -> AnswerFormat:
        """How the model writes its answers, found when it is asked for."""
        from core.formats.selection import served_format

        tokenizer = self.get_tokenizer()
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
    ) -> list[RequestOutput]:
        client = self._live_client()
        entries = []
        for index in range(len(prompts)):
            told = None if explain is None else explain[index]
            terms = RequestTerms(
                priority=priority[index],
                arrival=time.monotonic(),
                marks_specials=marks_specials,
                explain=told,
            )
            entry = self._process(index, prompts, params[index], terms)
            entries.append(entry)
        return run_batch(client, self._output, entries, use_tqdm)

    def _process(
        self, index: int, prompts: list[PromptInput], params: SamplingParams | PoolingParams, terms: RequestTerms
    ) -> ProcessedInput:
        """One checked prompt. Raises RequestError, which names the prompt when there are several."""
        try:
            if isinstance(params, SamplingParams):
                params = msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
            wanted = getattr(params, "structured_outputs", None)
            begin = time.monotonic()
            grammar = None if wanted is None else self._grammars.compile(wanted)
            if grammar is not None:
                terms = terms.with_grammar(begin)
            return self._input.process(str(next(self._ids)), prompts[index], params, terms, grammar=grammar)
        except RequestError as error:
            if len(prompts) == 1:
                raise
            raise RequestError(
                f"Prompt {index}: {error}", param=error.param, status=error.status, code=error.code
            ) from error


def _check_count(name: str, given: Sequence[Any] | None, count: int) -> None:
    """Raises RequestError unless there is one entry for each prompt."""
    if given is not None and len(given) != count:
        raise RequestError(f"{name} has {len(given)} entries for {count} prompts; pass one for each.", param=name)


def _template(tokenizer: Tokenizer, given: str | None) -> ChatTemplate:
    """The template that renders conversations: `given` as source or name, else the checkpoint's."""
    named = tokenizer.named_templates
    special = tokenizer.special_tokens
    if given:
        return ChatTemplate(named.get(given, given), special)
    return ChatTemplate(tokenizer.chat_template, special, named.get(TOOL_TEMPLATE))


def as_conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """A single conversation as a list of one."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RequestError(
            f"messages is a {type(messages).__name__}; expected a list of messages with 'role' and 'content', or a list of "
            "such lists.",
            param="messages",
        )
    single = bool(messages) and isinstance(messages[0], Mapping)
    conversations: list[Any] = [messages] if single else list(messages)
    for index, conversation in enumerate(conversations):
        is_list = isinstance(conversation, Sequence) and not isinstance(conversation, str)
        if not is_list or not conversation or not all(isinstance(message, Mapping) for message in conversation):
            raise RequestError(
                f"Conversation {index} is not a list of messages; expected [{{'role': ..., 'content': ...}}, ...].",
                param="messages",
            )
    return conversations
