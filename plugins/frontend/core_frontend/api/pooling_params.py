"""Parameters of a pooling request, under vLLM's names.

Owns: `PoolingParams` and its validation. Never does: know a model. Called by: users (`from core import PoolingParams`),
the server (from request bodies), the input processor, which resolves them to a `Pooling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

import msgspec

from core.api.errors import RequestError, nearest
from core.api.keyword_hints import HintedMeta
from core.api.pooling import PoolingTask

__all__ = ["TASKS", "LateChunkingParams", "PoolingParams", "PoolingTask"]

TASKS: tuple[str, ...] = get_args(PoolingTask)
ELSEWHERE: Mapping[str, str] = {
    "softmax": "use_activation says whether the numbers of classes become probabilities.",
    "step_tag_id": "--pooler-config.step_tag_id says it for all requests.",
    "returned_token_ids": "--pooler-config.returned_token_ids says it for all requests.",
    "late_interaction_params": "token_embed gives the vectors whose interaction is the score.",
    "skip_reading_prefix_cache": "Where states of all tokens count, no cached prefix is used anyway.",
    "requires_token_ids": "Outputs always have the prompt's token ids.",
    "extra_kwargs": "There are no plugins that take further arguments of pooling.",
}
"""The replacement of each of vLLM's other parameters."""
MOST = (1 << 31) - 1
ACTIVATION_NAMES = ("use_activation", "normalize", "activation")


class LateChunkingParams(msgspec.Struct, frozen=True):
    """The parameters of late chunking: a text is read whole, and its tokens' vectors are averaged in parts.

    chunk_size: tokens of a part, including special tokens.
    """

    chunk_size: int


class PoolingParams(
    msgspec.Struct, metaclass=HintedMeta, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """How the hidden states of a text become an answer.

    task: `embed` (one vector per text) or `token_embed` (one per token), `classify` or `token_classify` (the classes of
        either); None: the task of the method or route.
    dimensions: numbers of a vector to keep, from its start; None: all.
    use_activation: whether vectors are normalized to length 1, and classes become probabilities; None: as the model's
        files say.
    normalize, activation: older names of the same.
    late_chunking_params: for `token_embed`, one vector for several tokens instead of one per token.
    truncate_prompt_tokens: number of tokens at the start of a longer text that count; -1: as many as the model accepts;
        None: a longer text is refused.
    """

    task: PoolingTask | None = None
    dimensions: int | None = None
    use_activation: bool | None = None
    normalize: bool | None = None
    activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    late_chunking_params: LateChunkingParams | None = None

    elsewhere: ClassVar[Mapping[str, str]] = ELSEWHERE

    def verify(self) -> None:
        """Raise RequestError for values that no model can serve."""
        if self.task is not None and self.task not in TASKS:
            raise RequestError(
                f"task is {self.task!r}; expected one of {', '.join(TASKS)}.{nearest(str(self.task), TASKS)}",
                param="task",
            )
        _check_int("dimensions", self.dimensions, least=1)
        _check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, least=-1)
        if self.truncate_prompt_tokens == 0:
            raise RequestError(
                "truncate_prompt_tokens is 0, which leaves no text; use -1 for as many tokens as fit.",
                param="truncate_prompt_tokens",
            )
        self._verify_chunks()
        said: set[bool] = set()
        for name in ACTIVATION_NAMES:
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise RequestError(f"{name} is {value!r}; expected true or false.", param=name)
            if value is not None:
                said.add(value)
        if len(said) > 1:
            raise RequestError(
                "use_activation and its older names, normalize and activation, differ; leave one out.",
                param="use_activation",
            )

    def _verify_chunks(self) -> None:
        chunks = self.late_chunking_params
        if chunks is None:
            return
        if not isinstance(chunks, LateChunkingParams):
            raise RequestError(
                f"late_chunking_params is a {type(chunks).__name__}; expected LateChunkingParams.",
                param="late_chunking_params",
            )
        _check_int("late_chunking_params.chunk_size", chunks.chunk_size, least=1)
        if self.task != "token_embed":
            raise RequestError(
                f"late_chunking_params is of the task 'token_embed', and task is {self.task!r}. `LLM.encode` and /pooling take "
                "the task; /v1/embeddings has it with --pooler-config.task token_embed.",
                param="late_chunking_params",
            )

    @property
    def activates(self) -> bool | None:
        """Return `use_activation` under any of its names."""
        for name in ACTIVATION_NAMES:
            value: bool | None = getattr(self, name)
            if value is not None:
                return value
        return None


def _check_int(name: str, value: Any, least: int) -> None:
    if value is None:
        return
    if type(value) is not int or value < least:
        raise RequestError(f"{name} is {value!r}; expected an integer from {least} on.", param=name)
    if value > MOST:
        raise RequestError(f"{name} is {value}; expected an integer of at most {MOST}.", param=name)
