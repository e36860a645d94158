"""Tokens of the words that an answer must not have.

Owns: which texts stand for a word. Never does: compare tokens with a model. Called by: the input processor; servers whose
tokenizer is a plugin, first in a process that can be ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from core_frontend.prompts.prompt_parser import check_unicode
from core_tokens.tokenizer import Tokenizer


def bad_word_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each word, both at the start of a text and after a space. Raises RequestError."""
    check_unicode("bad_words", "".join(words))
    texts = [start + word.lstrip() for word in words for start in ("", " ")]
    found = dict.fromkeys(map(tuple, tokenizer.encode_batch(texts, add_special_tokens=False)))
    found.pop((), None)
    return [list(ids) for ids in found]
