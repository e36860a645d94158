"""Prompts as embeddings: what takes the place of the rows that the model has for its tokens.

Owns: their checks, and their form in a message. Never does: compute them. Called by: the prompt parser, and the server, which
reads them from a file in a request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.api.config import ModelConfig
from core.api.errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
KEY = "prompt_embeds"
FLAGS = "prompt_is_token_ids"
PLACEHOLDER = 0
"""The token id of a position whose token is not known."""


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """num_tokens: positions. data: float32 [num_tokens, size] in the machine's byte order. digest: of the data."""

    num_tokens: int
    data: bytes
    digest: str

    @classmethod
    def of(cls, values: Floats) -> PromptEmbeds:
        """Of numbers [num_tokens, size]. Raises RequestError for those that are none."""
        import numpy as np  # 13 MB that a process which only reads requests does without

        if not np.isfinite(values).all():
            raise RequestError(f"{KEY} holds NaN or infinity; expected finite numbers.", param=KEY)
        data = values.tobytes()
        return cls(len(values), data, hashlib.sha256(data).hexdigest())

    def salted(self, cache_salt: str | None) -> str:
        """The salt of the prompt: cached prefixes are those of the same embeddings only, whatever its token ids are."""
        return f"{KEY}:{self.digest}:{cache_salt or ''}"


def read_embeds(prompt: Mapping[str, Any], model: ModelConfig) -> PromptEmbeds | None:
    """The embeddings of a prompt; None when it has none.

    prompt: may have `prompt_embeds`, a tensor or an array of floats [num_tokens, size], or what was made of one before, and
        `prompt_is_token_ids`, of each position whether its token counts, which must be False for all of them.
    Raises RequestError.
    """
    given = prompt.get(KEY)
    flags = prompt.get(FLAGS)
    if given is None:
        if flags is not None:
            raise RequestError(f"{FLAGS} is given without {KEY}; leave it out.", param=FLAGS)
        return None
    if isinstance(given, PromptEmbeds):
        return given
    check_served(model.embedding_size)
    values = _as_array(given)
    values = values.reshape(check_shape(values.shape, model.embedding_size, model.max_model_len))
    found = PromptEmbeds.of(values)
    if flags is not None:
        _check_flags(flags, found.num_tokens)
    return found


def check_served(size: int) -> None:
    """Raise RequestError where prompts bring no embeddings. size: numbers of an embedding, 0 there."""
    if not size:
        raise RequestError(
            f"The prompt has {KEY}, which this engine does not take; start it with --enable-prompt-embeds, or give text or "
            "token ids.",
            param=KEY,
        )


def check_shape(shape: Sequence[int], size: int, max_model_len: int) -> tuple[int, int]:
    """The positions of a prompt, and the numbers of each. A batch of one prompt is that prompt. Raises RequestError."""
    inner = tuple(shape[1:]) if len(shape) == 3 and shape[0] == 1 else tuple(shape)
    if len(inner) != 2 or inner[1] != size or not inner[0]:
        raise RequestError(
            f"{KEY} has the shape {tuple(shape)}; expected (tokens, {size}), with at least one token.", param=KEY
        )
    limit = max_model_len - 1
    if inner[0] > limit:
        raise RequestError(
            f"{KEY} has {inner[0]} positions, but at most {limit} fit the context with a token of output; shorten it, or "
            "raise --max-model-len.",
            param=KEY,
            code="context_length_exceeded",
        )
    return inner[0], inner[1]


def _as_array(given: Any) -> Floats:
    """A tensor of torch, which is not imported for that, or whatever numpy takes."""
    import numpy as np

    if hasattr(given, "detach"):
        given = given.detach().cpu().float().numpy()
    try:
        values = np.ascontiguousarray(given, np.float32)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"{KEY} is a {type(given).__name__}; expected a tensor or an array of floats.", param=KEY
        ) from error
    return values


def _check_flags(flags: Any, count: int) -> None:
    is_list = isinstance(flags, Sequence) and len(flags) == count
    if not is_list or any(flags):
        raise RequestError(
            f"{FLAGS} must be a list of {count} times False: token ids and embeddings are not mixed in a prompt; give the "
            "embeddings of all tokens.",
            param=FLAGS,
        )
