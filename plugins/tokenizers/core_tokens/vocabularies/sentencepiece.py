"""Sentencepiece's vocabularies, BPE and unigram, in the `tokenizers` library's terms.

Owns: the translation. Never does: read files, add special tokens. Called by: `core_tokens.vocabularies.vocabulary`.

Two differences from the sentencepiece package remain, as in transformers' conversions. Where a file has rules that
rewrite characters, the library applies at most one of them to a letter with its marks, so a letter with two accents may
lose one. A unigram vocabulary with byte tokens encodes the literal text `<0x41>` as such a token.
"""

from __future__ import annotations

import math

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from core.api.errors import CheckpointError
from core_tokens.tokenizer_source import Vocabulary
from core_tokens.vocabularies.charsmap import check_charsmap
from core_tokens.vocabularies.kinds import BYTE
from core_tokens.vocabularies.merges import merges_from_scores

SPACE = "▁"


def build_sentencepiece(vocabulary: Vocabulary, ids: dict[str, int]) -> tokenizers.Tokenizer:
    """Build the tokenizer without special tokens. ids: token → id. Raises CheckpointError."""
    unigram = vocabulary.model == "unigram"
    model = _unigram(vocabulary) if unigram else _bpe(vocabulary, ids)
    built = tokenizers.Tokenizer(model)
    built.normalizer = _normalizer(vocabulary)
    if vocabulary.add_space_prefix and vocabulary.space_prefix_once:
        built.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.add_space_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    built.decoder = decoders.Sequence(steps)
    return built


def _bpe(vocabulary: Vocabulary, ids: dict[str, int]) -> models.BPE:
    unknown = None
    if vocabulary.unk_token_id is not None:
        unknown = vocabulary.tokens[vocabulary.unk_token_id]
    merges = merges_from_scores(vocabulary)
    has_bytes = vocabulary.byte_fallback
    return models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)


def _unigram(vocabulary: Vocabulary) -> models.Unigram:
    if vocabulary.unk_token_id is None:
        raise CheckpointError("The vocabulary names no unknown token, which unigram needs; the checkpoint is damaged.")
    if len(vocabulary.scores) != len(vocabulary.tokens):
        raise CheckpointError(
            f"The vocabulary has {len(vocabulary.tokens)} tokens and {len(vocabulary.scores)} scores; the checkpoint is "
            "damaged."
        )
    rows = list(zip(vocabulary.tokens, vocabulary.scores, strict=True))
    for token, score in rows:
        if not math.isfinite(score):
            raise CheckpointError(f"The token {token!r} has the score {score}; the checkpoint is damaged.")
    has_bytes = vocabulary.byte_fallback and BYTE in vocabulary.types
    return models.Unigram(rows, unk_id=vocabulary.unk_token_id, byte_fallback=has_bytes)


def _normalizer(vocabulary: Vocabulary) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if vocabulary.charsmap:
        check_charsmap(vocabulary.charsmap)
        steps.append(normalizers.Precompiled(vocabulary.charsmap))
    if vocabulary.remove_extra_whitespaces:
        # Only spaces: sentencepiece leaves line feeds to its rules. At the end it treats the text's own `▁` as spaces.
        steps.append(normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if vocabulary.add_space_prefix and not vocabulary.space_prefix_once:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
