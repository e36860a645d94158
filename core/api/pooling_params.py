"""What a request asks of pooling, under vLLM's names.

Owns: `PoolingParams` and its validation. Never does: know a model. Called by: users (`from core import PoolingParams`), the
server (from request bodies), the input processor, which resolves them to a `Pooling`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from core.api.errors import RequestError, nearest
from core.api.keyword_hints import HintedMeta

PoolingTask = Literal["embed", "token_embed"]
TASKS: tuple[str, ...] = get_args(PoolingTask)


class PoolingParams(
    msgspec.Struct, metaclass=HintedMeta, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """How the hidden states of a text become an answer.

    task: `embed` (one vector a text) or `token_embed` (one a token); None: what the method or route is for.
    dimensions: numbers of a vector, the first ones of it; None: all.
    use_activation: whether vectors get the length 1; None: as the model's files say.
    normalize: the older name of the same.
    truncate_prompt_tokens: of a longer text, this many first tokens count; -1: as many as the model takes; None: it is refused.
    """

    task: PoolingTask | None = None
    dimensions: int | None = None
    use_activation: bool | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: int | None = None

    def verify(self) -> None:
        """Raises RequestError for values that no model can serve."""
        if self.task is not None and self.task not in TASKS:
            raise RequestError(
                f"task is {self.task!r}; expected {' or '.join(TASKS)}.{nearest(str(self.task), TASKS)}", param="task"
            )
        _check_int("dimensions", self.dimensions, least=1)
        _check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, least=-1)
        if self.truncate_prompt_tokens == 0:
            raise RequestError(
                "truncate_prompt_tokens is 0, which leaves no text; use -1 for as many tokens as fit.",
                param="truncate_prompt_tokens",
            )
        for name in ("use_activation", "normalize"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise RequestError(f"{name} is {value!r}; expected true or false.", param=name)
        if None not in (self.use_activation, self.normalize) and self.use_activation != self.normalize:
            raise RequestError(
                f"use_activation is {self.use_activation} and normalize, its older name, {self.normalize}; leave one out.",
                param="normalize",
            )

    @property
    def activates(self) -> bool | None:
        """`use_activation` under either name."""
        return self.normalize if self.use_activation is None else self.use_activation


def _check_int(name: str, value: Any, least: int) -> None:
    if value is None:
        return
    if type(value) is not int or value < least:
        raise RequestError(f"{name} is {value!r}; expected an integer from {least} on.", param=name)
