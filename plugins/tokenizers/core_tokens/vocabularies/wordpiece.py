"""BERT's vocabularies in the `tokenizers` library's terms.

Owns: the translation. Never does: read files, add special tokens. Called by: `core_tokens.vocabularies.vocabulary`.
"""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from core.api.errors import CheckpointError
from core_tokens.tokenizer_source import Vocabulary

CONTINUES = "##"


def build_wordpiece(vocabulary: Vocabulary, ids: dict[str, int]) -> tokenizers.Tokenizer:
    """Build the tokenizer without special tokens. ids: token → id. Raises CheckpointError without an unknown token."""
    if vocabulary.unk_token_id is None:
        raise CheckpointError("The vocabulary names no unknown token, which WordPiece needs; expected [UNK].")
    unknown = vocabulary.tokens[vocabulary.unk_token_id]
    model = models.WordPiece(ids, unk_token=unknown, continuing_subword_prefix=CONTINUES)
    built = tokenizers.Tokenizer(model)
    built.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=vocabulary.split_chinese,
        strip_accents=vocabulary.strip_accents,
        lowercase=vocabulary.lowercase,
    )
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece(CONTINUES)
    return built
