"""The methods of `LLM` for vectors, classes and scores.

Owns: `PoolingMethods`. Never does: run the engine (`LLM` does). Called by: users, through `LLM`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec

from core.api.errors import RequestError
from core.api.pooling import PoolingConfig
from core_frontend.api.pooling_outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PooledOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    WholeOutput,
    similarity,
)
from core_frontend.api.pooling_params import PoolingParams, PoolingTask
from core_frontend.batch_run import Progress
from core_frontend.io.pool import BlockingIO
from core_frontend.io.process import DATA
from core_frontend.library.keywords import refuse_keywords
from core_frontend.library.lora_request import Adapters, LoRARequest
from core_frontend.library.pooled import as_tensor, whole_answer
from core_frontend.prompts.prompt_parser import PromptInput, as_batch
from core_frontend.prompts.text_pairs import TextPairs, partnered, reads_pairs
from core_tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    Hidden = PoolingRequestOutput[PoolingOutput[Tensor]]

Prompts = PromptInput | Sequence[PromptInput]
Params = PoolingParams | Sequence[PoolingParams] | None


class PoolingOptions(TypedDict, total=False):
    """The options of all methods for single texts.

    use_tqdm: whether to show a progress bar, or a callable that makes one.
    truncate_prompt_tokens: see `PoolingParams`.
    priority: of each text, if the scheduling policy uses it.
    lora_request: the adapter of all texts, or one for each; None: the model itself.
    tokenization_kwargs: None: see `core_frontend.library.keywords`.
    """

    use_tqdm: Progress
    truncate_prompt_tokens: int | None
    priority: Sequence[int] | None
    lora_request: Adapters
    tokenization_kwargs: None


OPTIONS = frozenset(("use_tqdm", "truncate_prompt_tokens", "priority", "lora_request"))
"""The options that are supported."""


class PoolingMethods:
    """The methods of a model that was loaded with `runner="pooling"`, or that is an encoder."""

    _tokenizer: Tokenizer | None

    @abstractmethod
    def _pool(
        self,
        prompts: Prompts,
        params: Params,
        use_tqdm: Progress,
        priority: Sequence[int] | None,
        adapters: Adapters = None,
    ) -> list[PooledOutput]:
        """Pool prompts; return the outputs in their order."""

    @property
    @abstractmethod
    def _pooling_config(self) -> PoolingConfig:
        """Return how the model pools. Raises RequestError for one that generates text."""

    @abstractmethod
    def _pairs(self, chat_template: str | None) -> TextPairs:
        """Return the object that makes one prompt of two texts. Raises RequestError without a tokenizer."""

    @abstractmethod
    def _io_processor(self) -> BlockingIO:
        """Return the IO processor. Raises RequestError where there is none."""

    def embed(
        self,
        prompts: Prompts,
        *,
        pooling_params: Params = None,
        prompt_name: str | None = None,
        **options: Unpack[PoolingOptions],
    ) -> list[EmbeddingRequestOutput] | list[Hidden]:
        """Return one vector per text, or the output of `encode`: with `late_chunking_params`, and if the usual task is
        `token_embed`.

        prompts: as in `generate`.
        pooling_params: one for all, one for each, or None.
        prompt_name: name of the prompt in the checkpoint's files that is put before each text; None: their default one,
            if they have one; empty: none.
        options: see `PoolingOptions`.
        Raises RequestError before anything runs if any text or parameter is wrong.
        """
        task = "token_embed" if _in_parts(pooling_params) else self._pooling_config.vectors
        whole = self._told(self.embed, task, self._prompted(prompts, prompt_name), pooling_params, options)
        if task == "token_embed":
            return [as_tensor(output) for output in whole]
        return [EmbeddingRequestOutput.from_base(output) for output in whole]

    def encode(
        self,
        prompts: Prompts,
        pooling_params: Params = None,
        *,
        pooling_task: PoolingTask | None = None,
        prompt_name: str | None = None,
        **options: Unpack[PoolingOptions],
    ) -> list[Hidden]:
        """Return the pooled hidden states, or the output of the model's head, as torch tensors.

        pooling_task: `embed` (float32 [H]) or `token_embed` (float32 [T, H]); for models with a head `classify`
            (float32 [N]) or `token_classify` (float32 [T, N]); None: the first of these that the model supports.
            Everything else is as in `embed`.
        prompts: `{"data": ...}` is for the IO processor (`--io-processor-plugin`); `outputs` of the one answer is then what
            it makes.
        """
        if isinstance(prompts, Mapping) and DATA in prompts:
            return [self._processed(prompts, pooling_task, pooling_params, prompt_name, options)]
        given = self._prompted(prompts, prompt_name)
        return [as_tensor(whole) for whole in self._told(self.encode, pooling_task, given, pooling_params, options)]

    def classify(
        self, prompts: Prompts, *, pooling_params: Params = None, **options: Unpack[PoolingOptions]
    ) -> list[ClassificationRequestOutput]:
        """Return a number for each class of a text: probabilities, or the model's own outputs (see docs/pooling.md)."""
        pooled = self._told(self.classify, "classify", prompts, pooling_params, options)
        return [ClassificationRequestOutput.from_base(whole) for whole in pooled]

    def reward(
        self, prompts: Prompts, *, pooling_params: Params = None, **options: Unpack[PoolingOptions]
    ) -> list[Hidden]:
        """Return the output of a reward model after each token of a text, float32 [T, N]."""
        return [
            as_tensor(whole) for whole in self._told(self.reward, "token_classify", prompts, pooling_params, options)
        ]

    def score(
        self,
        data_1: Prompts,
        data_2: Prompts,
        *,
        use_tqdm: Progress = True,
        pooling_params: PoolingParams | None = None,
        truncate_prompt_tokens: int | None = None,
        chat_template: str | None = None,
        instruction: str | None = None,
        lora_request: LoRARequest | None = None,
        **options: Any,
    ) -> list[ScoringRequestOutput]:
        """Return how well texts match: the score of a model that reads both; else the cosine of their vectors, from -1
        to 1; or, if the model's usual vectors are those of tokens, their late interaction.

        data_1: one text, which is compared with each of `data_2`, or as many as `data_2` has.
        pooling_params: with `task`, `embed` or `token_embed` decides which vectors are compared.
        chat_template: Jinja source that writes a query and a document; None: the model's own.
        instruction: what a template tells the model to look for; None: the template's default.
        lora_request: the adapter of all texts; None: the model itself.
        options: `tokenization_kwargs`, which may be None.
        """
        refuse_keywords(options, self.score)
        first = as_batch(data_1)
        second = as_batch(data_2)
        left = partnered(first, second)
        if reads_pairs(self._pooling_config, "classify and encode"):
            pairs = self._pairs(chat_template)
            params = _one("classify", pooling_params or PoolingParams(), truncate_prompt_tokens)
            prompts: list[PromptInput] = []
            for one, other in zip(left, second, strict=True):
                texts = _text("data_1", one), _text("data_2", other)
                pair = pairs.join(*texts, params.truncate_prompt_tokens, instruction)
                prompts.append(pair.as_prompt())
            pooled = self._pooled(prompts, params, use_tqdm, adapters=lora_request)
            return [ScoringRequestOutput.from_base(whole) for whole in pooled]
        for name, value in (("chat_template", chat_template), ("instruction", instruction)):
            if value is not None:
                raise RequestError(f"{name} is of models that read pairs of texts; leave it out.", param=name)
        asked = None if pooling_params is None else pooling_params.task
        task = asked if asked in ("embed", "token_embed") else self._pooling_config.vectors
        of_vectors = _for_task(task, pooling_params, truncate_prompt_tokens)
        outputs = self._pooled([*first, *second], of_vectors, use_tqdm, adapters=lora_request)
        others = outputs[len(first) :]
        return [_score(*pair) for pair in zip(partnered(outputs[: len(first)], others), others, strict=True)]

    def _processed(
        self,
        prompt: Mapping[str, Any],
        task: PoolingTask | None,
        params: Params,
        prompt_name: str | None,
        options: PoolingOptions,
    ) -> PoolingRequestOutput[Any]:
        """Return the answer that the IO processor makes of data. Raises RequestError."""
        others = sorted(set(prompt) - {DATA})
        if others or prompt_name is not None or isinstance(params, Sequence):
            what = others[0] if others else "prompt_name, or several pooling_params,"
            raise RequestError(
                f"{what} cannot be given with data, of which the IO processor makes prompts; leave it out."
            )
        processor = self._io_processor()
        made = processor.prompts(prompt[DATA])
        prompts: list[PromptInput] = [
            text if isinstance(text, str) else {"prompt_token_ids": text} for text in made.pop("input")
        ]
        given = msgspec.structs.asdict(params or PoolingParams())
        merged = made | {name: value for name, value in given.items() if value is not None}
        whole = self._told(self.encode, task, prompts, msgspec.convert(merged, PoolingParams), options)
        answer = processor.answer(prompt[DATA], whole)
        cached = sum(output.num_cached_tokens for output in whole)
        return PoolingRequestOutput(whole[0].request_id, answer, [], cached)

    def _told(
        self,
        method: Callable[..., Any],
        task: PoolingTask | None,
        prompts: Prompts,
        params: Params,
        options: PoolingOptions,
    ) -> list[WholeOutput]:
        """Return the answers to single texts.

        method: the owner of the options. task: of the method; None: from the parameters.
        """
        refuse_keywords(options, method, OPTIONS)
        own = _for_task(task, params, options.get("truncate_prompt_tokens"))
        adapters = options.get("lora_request")
        return self._pooled(prompts, own, options.get("use_tqdm", True), options.get("priority"), adapters)

    def _pooled(
        self,
        prompts: Prompts,
        params: Params,
        use_tqdm: Progress,
        priority: Sequence[int] | None = None,
        adapters: Adapters = None,
    ) -> list[WholeOutput]:
        """Return the answers, in the order of the prompts.

        Raises RequestError for a text that the engine could not pool.
        """
        outputs = self._pool(prompts, params, use_tqdm, priority, adapters)
        return [whole_answer(output, self._tokenizer) for output in outputs]

    def _prompted(self, prompts: Prompts, name: str | None) -> list[PromptInput]:
        """Return prompts preceded by the named prompt. Raises RequestError if that is impossible."""
        batch = as_batch(prompts)
        config = self._pooling_config
        front = config.prompt(name)
        if not front:
            return batch
        found: list[PromptInput] = []
        for prompt in batch:
            text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
            has_ids = isinstance(prompt, Mapping) and prompt.get("prompt_token_ids") is not None
            if not isinstance(text, str) or has_ids:
                if name is not None:
                    raise RequestError("prompt_name is of texts, and this prompt is token ids.", param="prompt_name")
                found.append(prompt)
            elif isinstance(prompt, Mapping):
                found.append({**prompt, "prompt": front + text})
            else:
                found.append(front + text)
        return found


def _in_parts(given: Params) -> bool:
    """Whether vectors of parts of a text are requested."""
    entries = [given] if isinstance(given, PoolingParams) else given or []
    return any(isinstance(params, PoolingParams) and params.late_chunking_params is not None for params in entries)


def _for_task(task: PoolingTask | None, given: Params, truncate: int | None) -> PoolingParams | list[PoolingParams]:
    """Return the parameters with the task of a method. Raises RequestError if they are for another one."""
    if given is not None and not isinstance(given, PoolingParams):
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise _no_params(given)
        return [_one(task, params, truncate) for params in given]
    return _one(task, given or PoolingParams(), truncate)


def _one(task: PoolingTask | None, given: PoolingParams, truncate: int | None) -> PoolingParams:
    if not isinstance(given, PoolingParams):
        raise _no_params(given)
    if task is not None and given.task is not None and given.task != task:
        raise RequestError(f"pooling_params.task is {given.task!r}; expected {task!r} here.", param="task")
    keep = given.truncate_prompt_tokens if truncate is None else truncate
    return msgspec.structs.replace(given, task=task or given.task, truncate_prompt_tokens=keep)


def _no_params(given: object) -> RequestError:
    return RequestError(
        f"pooling_params is a {type(given).__name__}; expected PoolingParams, or a list of them.",
        param="pooling_params",
    )


def _score(left: WholeOutput, right: WholeOutput) -> ScoringRequestOutput:
    """Return how well the vectors of two texts match."""
    return ScoringRequestOutput(
        right.request_id,
        ScoringOutput(similarity(left.outputs.data, right.outputs.data)),
        left.prompt_token_ids + right.prompt_token_ids,
        left.num_cached_tokens + right.num_cached_tokens,
    )


def _text(name: str, given: PromptInput) -> str:
    """Return a side of a pair. Raises RequestError for anything but text."""
    text = given.get("prompt") if isinstance(given, Mapping) else given
    if not isinstance(text, str):
        raise RequestError(f"{name} holds a {type(given).__name__}; a model that reads pairs takes texts.", param=name)
    return text
