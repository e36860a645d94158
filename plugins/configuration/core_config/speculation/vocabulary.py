"""Comparison of a draft model's vocabulary with that of its main model.

Owns: that comparison. Never does: map one vocabulary to another. Called by: the stage that finds the draft.
"""

from __future__ import annotations

from typing import Final

from core.api.errors import UserError
from core_runtime.specs.checkpoint import TokenizerSource
from core_tokens.tokenizer import Tokenizer

NUM_COMPARED: Final = 256
"""Number of tokens, spread over the whole vocabulary, that are compared by their bytes. Different tokenizers often
agree on the first few tokens.
"""


def check_vocabulary(draft: TokenizerSource, target: TokenizerSource, where: str) -> None:
    """Raise UserError when tokens of the two differ, as far as both checkpoints have tokenizers. where: the beginning
    of the sentence.
    """
    if draft == target or not (_is_there(draft) and _is_there(target)):
        return
    own = Tokenizer.from_source(draft)
    other = Tokenizer.from_source(target)
    last = min(own.largest_id, other.largest_id)
    for token in range(0, last + 1, max(1, last // NUM_COMPARED)):
        mine = own.token_bytes(token)
        theirs = other.token_bytes(token)
        if mine and theirs and mine != theirs:  # ids without a token are not compared
            raise UserError(
                f"{where} has another vocabulary: its token {token} is {mine!r}, the main model's is {theirs!r}. "
                "Choose a draft of the main model's own kind."
            )


def _is_there(source: TokenizerSource) -> bool:
    return source.directory is not None or source.vocabulary is not None
