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

# GGUF's token types.
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
SPACE = "▁"


def build_tokenizer(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer. Raises CheckpointError when the vocabulary contradicts itself or is of an unknown kind."""
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    if len(ids) != len(vocabulary.tokens):
        twice = _first_repeated(vocabulary.tokens)
        raise CheckpointError(f"The vocabulary holds the token {twice!r} twice; the checkpoint is damaged.")
    build = _byte_level if vocabulary.model == "bpe" else _sentencepiece
    try:
        built = build(vocabulary, ids)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"The vocabulary cannot be used ({error}); the checkpoint is damaged.") from error
    _add_tokens(built, vocabulary)
    _add_ends(built, vocabulary)
    return built


def _first_repeated(tokens: list[str]) -> str | None:
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            return token
        seen.add(token)
    return None


def _byte_level(vocabulary: Vocabulary, ids: dict[str, int]) -> tokenizers.Tokenizer:
    row = PRE_TOKENIZERS.get(vocabulary.pre)
    if row is None:
        raise CheckpointError(
            f"The checkpoint's pre-tokenizer '{vocabulary.pre}' is unknown.{nearest(vocabulary.pre, PRE_TOKENIZERS)} "
            "Name a tokenizer with --tokenizer."
        )
    merges = [tuple(merge.split(" ", 1)) for merge in vocabulary.merges]
    model = models.BPE(vocab=ids, merges=merges, ignore_merges=row.whole_words)  # type: ignore[arg-type]
    built = tokenizers.Tokenizer(model)
    normalizer = row.normalizer()
    if normalizer is not None:
        built.normalizer = normalizer
    built.pre_tokenizer = row.build()
    built.decoder = decoders.ByteLevel()
    return built


def _sentencepiece(vocabulary: Vocabulary, ids: dict[str, int]) -> tokenizers.Tokenizer:
    unknown = None
    if vocabulary.unk_token_id is not None:
        unknown = vocabulary.tokens[vocabulary.unk_token_id]
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
    tokens = vocabulary.tokens
    types = vocabulary.types or [NORMAL] * len(tokens)
    indices = list(range(len(tokens)))
    if vocabulary.scores:
        indices.sort(key=vocabulary.scores.__getitem__, reverse=True)
    best_first = [tokens[index] for index in indices if types[index] == NORMAL]
    normal = set(best_first)
    merges = []
    for token in best_first:
        for cut in range(1, len(token)):
            left = token[:cut]
            right = token[cut:]
            if left in normal and right in normal:
                merges.append((left, right))
    return merges


def _add_tokens(built: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Control tokens are special. User-defined ones are found in the text before anything is merged, longest first."""
    special = []
    defined = []
    types = vocabulary.types or _guessed_types(vocabulary)
    for token, kind in zip(vocabulary.tokens, types, strict=True):
        if kind in (CONTROL, UNKNOWN):
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == USER_DEFINED:
            defined.append(AddedToken(token, normalized=SPACE in token, special=False))
    built.add_special_tokens(special)
    built.add_tokens(defined)


def _guessed_types(vocabulary: Vocabulary) -> list[int]:
    """Types for a vocabulary without any: the tokens that it names for a purpose are control tokens."""
    named = {vocabulary.bos_token_id, vocabulary.eos_token_id, vocabulary.pad_token_id, vocabulary.unk_token_id}
    return [CONTROL if index in named else NORMAL for index in range(len(vocabulary.tokens))]


def _add_ends(built: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Beginning and end of text around every encoded text, where the vocabulary asks for them."""
    bos = vocabulary.bos_token_id if vocabulary.add_bos else None
    eos = vocabulary.eos_token_id if vocabulary.add_eos else None
    first = [] if bos is None else [vocabulary.tokens[bos]]
    last = [] if eos is None else [vocabulary.tokens[eos]]
    # The library has no place for a token without any text, which a damaged vocabulary may name.
    names = [name for name in first + last if name]
    if not names:
        return
    single = [name for name in [*first, "$A", *last] if name]
    second = [piece.replace("$A", "$B") + ":1" for piece in single]
    pair = single + second
    special = [(name, built.token_to_id(name)) for name in names]
    built.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
