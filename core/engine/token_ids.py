"""Checks of token ids that come from users and clients.

Owns: the checks of ids against the vocabulary, of one list and of a whole request. Never does: tokenize.
Called by: the input processor for what users give, the engine's loop for what clients send.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from core.api.config import ModelConfig
from core.api.errors import RequestError
from core.api.messages import EngineRequest

ALLOWED_ID_BYTES = 8
EMBEDDING_BYTES = 4
PIECE = 16_384
"""Number of token ids checked in one call. `min` and `max` hold the interpreter lock, which others get between two calls."""


def check_token_ids(param: str, ids: Sequence[int], model: ModelConfig) -> None:
    """Raise RequestError for a token id that is not in the vocabulary."""
    if all(min(piece) >= 0 and max(piece) < model.vocab_size for piece in pieces(ids)):
        return
    wrong = next(token for token in ids if not 0 <= token < model.vocab_size)
    raise RequestError(
        f"{param} holds the token id {wrong}; the vocabulary of {model.served_names[0]!r} goes from 0 to "
        f"{model.vocab_size - 1}.",
        param=param,
    )


def pieces(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the ids in slices of at most `PIECE`; a short list is not copied."""
    if 0 < len(ids) <= PIECE:
        yield ids
        return
    for start in range(0, len(ids), PIECE):
        yield ids[start : start + PIECE]


def check_request(request: EngineRequest, model: ModelConfig) -> None:
    """Raise RequestError for ids that the worker would use as invalid indices into its arrays.

    Clients check the values of users; this check is for a broken client.
    """
    check_token_ids("prompt_token_ids", request.prompt_token_ids, model)
    check_token_ids("stop_token_ids", request.stop_token_ids, model)
    _check_embeds(request, model.embedding_size)
    for name in ("trace_decode_token_ids", "logprob_token_ids", "logit_bias"):
        check_token_ids(name, list(getattr(request.params, name) or ()), model)
    if request.resume is not None:
        check_token_ids("resume", request.resume.output_token_ids, model)
    for word in request.bad_words_ids:
        check_token_ids("bad_words", word, model)
        if not word:
            raise RequestError("bad_words holds a word without tokens; leave it out.", param="bad_words")
    if len(request.allowed_ids) % ALLOWED_ID_BYTES:
        raise RequestError(
            f"allowed_ids has {len(request.allowed_ids)} bytes; expected {ALLOWED_ID_BYTES} for each token id.",
            param="allowed_token_ids",
        )
    import numpy as np  # processes that only read requests do without it

    # Smallest and largest suffice, and there may be as many ids as the vocabulary has.
    allowed = np.frombuffer(request.allowed_ids, np.int64)
    if len(allowed):
        check_token_ids("allowed_token_ids", [int(allowed.min()), int(allowed.max())], model)


def _check_embeds(request: EngineRequest, size: int) -> None:
    """Raise RequestError for embeddings whose size does not fit the prompt's positions."""
    num_bytes = len(request.prompt_embeds)
    expected = len(request.prompt_token_ids) * size * EMBEDDING_BYTES
    if num_bytes and num_bytes != expected:
        raise RequestError(f"prompt_embeds has {num_bytes} bytes; expected {expected}.", param="prompt_embeds")
