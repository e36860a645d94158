"""A tokenizer from a vocabulary that a checkpoint carries as data.

Owns: the translation of byte-level BPE and sentencepiece vocabularies into the `tokenizers` library's terms.
Never does: read files. Called by: `core.tokens.tokenizer`.
"""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from core.api.checkpoint import Vocabulary
from core.api.errors import CheckpointError, nearest
from core.tokens.pretokenizers import PRE_TOKENIZERS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
SPACE = "▁"


def build_tokenizer(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer. Raises CheckpointError when the vocabulary contradicts itself or is of an unknown kind."""
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    if len(ids) != len(vocabulary.tokens):
        seen: set[str] = set()
        twice = next(token for token in vocabulary.tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
        raise CheckpointError(f"The vocabulary holds the token {twice!r} twice; the checkpoint is damaged.")
    try:
        built = _byte_level(vocabulary, ids) if vocabulary.model == "bpe" else _sentencepiece(vocabulary, ids)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"The vocabulary cannot be used ({error}); the checkpoint is damaged.") from error
    _add_tokens(built, vocabulary)
    _add_ends(built, vocabulary)
    return built


def _byte_level(vocabulary: Vocabulary, ids: dict[str, int]) -> tokenizers.Tokenizer:
    row = PRE_TOKENIZERS.get(vocabulary.pre)
    if row is None:
        raise CheckpointError(
            f"The checkpoint's pre-tokenizer '{vocabulary.pre}' is unknown.{nearest(vocabulary.pre, PRE_TOKENIZERS)} "
            "Name a tokenizer with --tokenizer."
        )
    merges = [tuple(merge.split(" ", 1)) for merge in vocabulary.merges]
    built = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=row.whole_words))  # type: ignore[arg-type]
    if (normalizer := row.normalizer()) is not None:
        built.normalizer = normalizer
    built.pre_tokenizer = row.build()
    built.decoder = decoders.ByteLevel()
    return built


def _sentencepiece(vocabulary: Vocabulary, ids: dict[str, int]) -> tokenizers.Tokenizer:
    unknown = None if vocabulary.unk_token_id is None else vocabulary.tokens[vocabulary.unk_token_id]
    merges = _merges_from_scores(vocabulary)
    model = models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    built = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.add_space_prefix:
        built.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        built.normalizer = spaces
    built.decoder = decoders.Sequence(steps)
    return built


def _merges_from_scores(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Sentencepiece joins the neighbours whose union scores best: every way to split a token, best tokens first."""
    tokens, scores = vocabulary.tokens, vocabulary.scores
    types = vocabulary.types or [NORMAL] * len(tokens)
    best_first = sorted(range(len(tokens)), key=scores.__getitem__, reverse=True) if scores else range(len(tokens))
    order = [tokens[index] for index in best_first if types[index] == NORMAL]
    normal = set(order)
    return [
        (token[:cut], token[cut:])
        for token in order
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]


def _add_tokens(built: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Control tokens are special. User-defined ones are found in the text before anything is merged, longest first."""
    special, defined = [], []
    named = {vocabulary.bos_token_id, vocabulary.eos_token_id, vocabulary.pad_token_id, vocabulary.unk_token_id}
    types = vocabulary.types or [NORMAL] * len(vocabulary.tokens)
    for index, (token, kind) in enumerate(zip(vocabulary.tokens, types, strict=True)):
        if kind in (CONTROL, UNKNOWN) or (kind == NORMAL and index in named and not vocabulary.types):
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == USER_DEFINED:
            defined.append(AddedToken(token, normalized=SPACE in token, special=False))
    built.add_special_tokens(special)
    built.add_tokens(defined)


def _add_ends(built: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Beginning and end of text around every encoded text, where the vocabulary asks for them."""
    ends = [(vocabulary.bos_token_id, vocabulary.add_bos), (vocabulary.eos_token_id, vocabulary.add_eos)]
    bos, eos = (vocabulary.tokens[index] if index is not None and wanted else None for index, wanted in ends)
    names = [name for name in (bos, eos) if name is not None]
    if not names:
        return
    single = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    pair = [*single, *(piece.replace("$A", "$B") + ":1" for piece in single)]
    special = [(name, built.token_to_id(name)) for name in names]
    built.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
