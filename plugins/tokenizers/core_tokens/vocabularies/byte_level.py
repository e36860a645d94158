"""Byte-level BPE vocabularies (GPT-2's kind, tiktoken, tekken) in the `tokenizers` library's terms.

Owns: the translation. Never does: read files, add special tokens. Called by: `core_tokens.vocabularies.vocabulary`.
"""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models

from core.api.errors import CheckpointError, nearest
from core_tokens.tokenizer_source import Vocabulary
from core_tokens.vocabularies.merges import merges_from_scores
from core_tokens.vocabularies.pretokenizers import PRE_TOKENIZERS, PreTokenizer


def build_byte_level(vocabulary: Vocabulary, ids: dict[str, int]) -> tokenizers.Tokenizer:
    """Build the tokenizer without special tokens. ids: token → id. Raises CheckpointError for an unknown pre-tokenizer."""
    row = _pre_tokenizer(vocabulary)
    merges: list[tuple[str, ...]] = [tuple(merge.split(" ", 1)) for merge in vocabulary.merges]
    whole_words = row.whole_words
    if not merges and vocabulary.scores:
        # Ranks without merges are tiktoken's, which keeps a piece that is itself a token.
        merges = [*merges_from_scores(vocabulary)]
        whole_words = True
    model = models.BPE(vocab=ids, merges=merges, ignore_merges=whole_words)  # type: ignore[arg-type]
    built = tokenizers.Tokenizer(model)
    normalizer = row.normalizer()
    if normalizer is not None:
        built.normalizer = normalizer
    built.pre_tokenizer = row.build(vocabulary.add_space_prefix)
    built.decoder = decoders.ByteLevel()
    return built


def _pre_tokenizer(vocabulary: Vocabulary) -> PreTokenizer:
    if vocabulary.pattern:
        return PreTokenizer((vocabulary.pattern,))
    row = PRE_TOKENIZERS.get(vocabulary.pre)
    if row is None:
        raise CheckpointError(
            f"The checkpoint's pre-tokenizer '{vocabulary.pre}' is unknown.{nearest(vocabulary.pre, PRE_TOKENIZERS)} "
            "Name a tokenizer with --tokenizer."
        )
    return row
