"""Merges of vocabularies that only rank their tokens (sentencepiece's BPE, tiktoken).

Owns: the derivation of merges. Never does: build a tokenizer. Called by: `core_tokens.vocabularies.byte_level`,
`core_tokens.vocabularies.sentencepiece`.
"""

from __future__ import annotations

from collections.abc import Sequence

from core_tokens.tokenizer_source import Vocabulary
from core_tokens.vocabularies.kinds import NORMAL

MAX_TOKEN_CHARACTERS = 1024
"""Limit on a token's length: it can be split in as many ways as it has characters, each of which copies it; 1,024 take
a millisecond.
"""


def merges_from_scores(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Derive merges that join the neighbours whose union scores best: every way to split a token, best tokens first."""
    best_first = _best_first(vocabulary)
    normal = set(best_first)
    merges = []
    for token in best_first:
        if len(token) > MAX_TOKEN_CHARACTERS:
            continue
        for cut in range(1, len(token)):
            left = token[:cut]
            right = token[cut:]
            if left in normal and right in normal:
                merges.append((left, right))
    return merges


def _best_first(vocabulary: Vocabulary) -> Sequence[str]:
    tokens = vocabulary.tokens
    types = vocabulary.types or [NORMAL] * len(tokens)
    indices = list(range(len(tokens)))
    if vocabulary.scores:
        indices.sort(key=vocabulary.scores.__getitem__, reverse=True)
    return [tokens[index] for index in indices if types[index] == NORMAL]
