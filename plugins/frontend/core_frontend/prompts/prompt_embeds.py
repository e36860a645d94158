"""Prompts as embeddings, which replace the model's embedding rows of tokens.

Owns: their checks, and their form in a message. Never does: compute them. Called by: the prompt parser, and the server,
which reads them from a file in a request.
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
"""The token id of a position whose token is unknown."""


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """The embeddings of one prompt.

    num_tokens: positions. data: float32 [num_tokens, size] in the machine's byte order. digest: of the data.
    """

    num_tokens: int
    data: bytes
    digest: str

    @classmethod
    def of(cls, values: Floats) -> PromptEmbeds:
        """Make a prompt from numbers [num_tokens, size]. Raises RequestError for numbers that are not finite."""
        import numpy as np  # 13 MB that a process that only reads requests does not need

        if not np.isfinite(values).all():
            raise RequestError(f"{KEY} holds NaN or infinity; expected finite numbers.", param=KEY)
        data = values.tobytes()
        return cls(len(values), data, hashlib.sha256(data).hexdigest())

    def salted(self, cache_salt: str | None) -> str:
        """Return the salt of the prompt, so that only prompts with the same embeddings share cached prefixes, whatever
        their token ids.
        """
        return f"{KEY}:{self.digest}:{cache_salt or ''}"


def read_embeds(prompt: Mapping[str, Any], model: ModelConfig) -> PromptEmbeds | None:
    """Return the embeddings of a prompt; None if it has none.

    prompt: may have `prompt_embeds` (a tensor or an array of floats [num_tokens, size], or a `PromptEmbeds`), and
        `prompt_is_token_ids` (for each position whether its token counts), which must be False for all of them. Raises
        RequestError.
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
    """Raise RequestError if the engine does not accept embeddings. size: numbers of an embedding, 0 in that case."""
    if not size:
        raise RequestError(
            f"The prompt has {KEY}, which this engine does not take; start it with --enable-prompt-embeds, or give text or "
            "token ids.",
            param=KEY,
        )


def check_shape(shape: Sequence[int], size: int, max_model_len: int) -> tuple[int, int]:
    """Return the positions of a prompt, and the numbers of each.

    A batch of one prompt counts as that prompt. Raises RequestError.
    """
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
    """Convert a torch tensor, without importing torch for it, or anything that numpy accepts."""
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
