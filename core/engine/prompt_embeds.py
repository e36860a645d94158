"""Prompts as embeddings: what takes the place of the rows that the model has for its tokens.

Owns: their checks, and their form in a message. Never does: compute them. Called by: the prompt parser.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.api.config import ModelConfig
from core.api.errors import RequestError

KEY = "prompt_embeds"
FLAGS = "prompt_is_token_ids"
PLACEHOLDER = 0
"""The token id of a position whose token is not known."""


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """num_tokens: positions. data: float32 [num_tokens, size] in the machine's byte order."""

    num_tokens: int
    data: bytes

    def salted(self, cache_salt: str | None) -> str:
        """The salt of the prompt: cached prefixes are those of the same embeddings only, whatever its token ids are."""
        digest = hashlib.sha256(self.data).hexdigest()
        return f"{KEY}:{digest}:{cache_salt or ''}"


def read_embeds(prompt: Mapping[str, Any], model: ModelConfig) -> PromptEmbeds | None:
    """The embeddings of a prompt; None when it has none.

    prompt: may have `prompt_embeds`, a tensor or an array of floats [num_tokens, size], and `prompt_is_token_ids`, of each
    position whether its token counts, which must be False for all of them.
    Raises RequestError.
    """
    given = prompt.get(KEY)
    flags = prompt.get(FLAGS)
    if given is None:
        if flags is not None:
            raise RequestError(f"{FLAGS} is given without {KEY}; leave it out.", param=FLAGS)
        return None
    size = model.embedding_size
    if not size:
        raise RequestError(
            f"The prompt has {KEY}, which this engine does not take; start it with --enable-prompt-embeds, or give text or "
            "token ids.",
            param=KEY,
        )
    values = _as_array(given)
    if values.ndim != 2 or values.shape[1] != size or not len(values):
        raise RequestError(
            f"{KEY} has the shape {tuple(values.shape)}; expected (tokens, {size}), with at least one token.", param=KEY
        )
    limit = model.max_model_len - 1
    if len(values) > limit:
        raise RequestError(
            f"{KEY} has {len(values)} positions, but at most {limit} fit the context with a token of output; shorten it, or "
            "raise --max-model-len.",
            param=KEY,
            code="context_length_exceeded",
        )
    if not np.isfinite(values).all():
        raise RequestError(f"{KEY} holds NaN or infinity; expected finite numbers.", param=KEY)
    if flags is not None:
        _check_flags(flags, len(values))
    return PromptEmbeds(len(values), values.tobytes())


def _as_array(given: Any) -> NDArray[np.float32]:
    """A tensor of torch, which is not imported for that, or whatever numpy takes."""
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
