"""Checks that several parts of a request need.

Owns: whether text can be encoded, whether token ids are in the vocabulary, whether there is a tokenizer.
Never does: know which field means what. Called by: the input processor and the prompt parser.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.config import ModelConfig
from core.api.errors import RequestError
from core.tokens.tokenizer import Tokenizer


def check_unicode(param: str, text: str) -> None:
    """Raises RequestError for half of a surrogate pair, which a Python string may hold, but no message and no hash."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} holds {text[error.start]!r} at character {error.start}, which is half of a character and cannot be "
            "encoded as UTF-8; send whole characters.",
            param=param,
        ) from error


def check_token_ids(param: str, ids: Sequence[int], model: ModelConfig) -> None:
    """Raises RequestError for a token id that is not in the vocabulary."""
    if not ids or (min(ids) >= 0 and max(ids) < model.vocab_size):
        return
    wrong = next(token for token in ids if not 0 <= token < model.vocab_size)
    raise RequestError(
        f"{param} holds the token id {wrong}; the vocabulary of {model.served_names[0]!r} goes from 0 to "
        f"{model.vocab_size - 1}.",
        param=param,
    )


def need_tokenizer(tokenizer: Tokenizer | None, what: str, param: str) -> Tokenizer:
    """The tokenizer. Raises RequestError, which says what it was needed for, when the model has none."""
    if tokenizer is None:
        raise RequestError(
            f"The model has no tokenizer, so {what} cannot be used; pass token ids, or name one with --tokenizer.",
            param=param,
        )
    return tokenizer
