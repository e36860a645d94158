"""The methods of `LLM` that give vectors, and numbers made of them.

Owns: `PoolingMethods`. Never does: run the engine (`LLM` does). Called by: users, through `LLM`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import msgspec

from core.api.errors import RequestError
from core.api.pooling_outputs import (
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PooledOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    cosine,
)
from core.api.pooling_params import PoolingParams, PoolingTask
from core.engine.batch_run import Progress
from core.engine.prompt_parser import PromptInput, as_batch

Prompts = PromptInput | Sequence[PromptInput]
Params = PoolingParams | Sequence[PoolingParams] | None


class PoolingMethods:
    """For a model that was loaded with `runner="pooling"`, or that is an encoder."""

    @abstractmethod
    def _pool(
        self, prompts: Prompts, params: Params, use_tqdm: Progress, priority: Sequence[int] | None
    ) -> list[PooledOutput]:
        """Pool prompts; the outputs come in their order."""

    def embed(
        self,
        prompts: Prompts,
        *,
        use_tqdm: Progress = True,
        pooling_params: Params = None,
        truncate_prompt_tokens: int | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """One vector a text.

        prompts: as in `generate`.
        pooling_params: one for all, one for each, or None.
        truncate_prompt_tokens: see `PoolingParams`.
        Raises RequestError before anything runs when any text or parameter is wrong.
        """
        params = _for_task("embed", pooling_params, truncate_prompt_tokens)
        found = []
        for output in self._pool(prompts, params, use_tqdm, priority):
            whole = _finished(output)
            vector = EmbeddingOutput(whole.outputs.data.tolist())
            found.append(
                EmbeddingRequestOutput(whole.request_id, vector, whole.prompt_token_ids, whole.num_cached_tokens)
            )
        return found

    def encode(
        self,
        prompts: Prompts,
        pooling_params: Params = None,
        *,
        use_tqdm: Progress = True,
        pooling_task: PoolingTask | None = None,
        truncate_prompt_tokens: int | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[PoolingRequestOutput]:
        """The pooled hidden states as arrays.

        pooling_task: `embed` (the default; float32 [H]) or `token_embed` (float32 [T, H]).
        """
        params = _for_task(pooling_task, pooling_params, truncate_prompt_tokens)
        return [_finished(output) for output in self._pool(prompts, params, use_tqdm, priority)]

    def score(
        self,
        data_1: Prompts,
        data_2: Prompts,
        *,
        use_tqdm: Progress = True,
        pooling_params: PoolingParams | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[ScoringRequestOutput]:
        """How near texts are: the cosine of the vectors of each pair, from -1 to 1.

        data_1: one text, which is compared with each of `data_2`, or as many as `data_2` has.
        """
        first = as_batch(data_1)
        second = as_batch(data_2)
        if not second or len(first) not in (1, len(second)):
            raise RequestError(
                f"data_1 has {len(first)} texts and data_2 {len(second)}; expected one, or as many.", param="data_1"
            )
        params = _for_task("embed", pooling_params, truncate_prompt_tokens)
        outputs = [_finished(output) for output in self._pool([*first, *second], params, use_tqdm, None)]
        left = outputs[: len(first)]
        right = outputs[len(first) :]
        if len(left) == 1:
            left = left * len(right)
        return [_score(*pair) for pair in zip(left, right, strict=True)]

    def classify(self, prompts: Prompts, **_: object) -> list[object]:
        """Raises RequestError: classes are not served."""
        raise RequestError(
            "classify needs a model with a head for classes, which is not served yet; embed gives vectors."
        )


def _for_task(task: PoolingTask | None, given: Params, truncate: int | None) -> PoolingParams | list[PoolingParams]:
    """The parameters with the task of a method. Raises RequestError when they are for another one."""
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


def _finished(output: PooledOutput) -> PoolingRequestOutput:
    """The answer. Raises RequestError for a text that the engine could not pool."""
    end = output.outputs[0]
    if end.finish_reason != "stop":
        raise RequestError(f"A text could not be pooled: {end.stop_reason or end.finish_reason}", status=500)
    return output.whole()


def _score(left: PoolingRequestOutput, right: PoolingRequestOutput) -> ScoringRequestOutput:
    """The cosine of two vectors."""
    return ScoringRequestOutput(
        right.request_id,
        ScoringOutput(cosine(left.outputs.data, right.outputs.data)),
        left.prompt_token_ids + right.prompt_token_ids,
        left.num_cached_tokens + right.num_cached_tokens,
    )
