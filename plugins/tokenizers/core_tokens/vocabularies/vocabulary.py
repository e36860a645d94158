"""A tokenizer from a vocabulary that a checkpoint carries as data.

Owns: the choice of the builder, added tokens, and the tokens around a text. Never does: read files.
Called by: `core_tokens.tokenizer`, `core_tokens.directory`.
"""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, processors

from core.api.errors import CheckpointError
from core_tokens.tokenizer_source import Vocabulary
from core_tokens.vocabularies.byte_level import build_byte_level
from core_tokens.vocabularies.kinds import CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from core_tokens.vocabularies.sentencepiece import SPACE, build_sentencepiece
from core_tokens.vocabularies.wordpiece import build_wordpiece

BUILDERS = {
    "bpe": build_byte_level,
    "spm": build_sentencepiece,
    "unigram": build_sentencepiece,
    "wordpiece": build_wordpiece,
}


def build_tokenizer(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Build the tokenizer. Raises CheckpointError for an inconsistent vocabulary or an unknown kind."""
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    if len(ids) != len(vocabulary.tokens):
        twice = _first_repeated(vocabulary.tokens)
        raise CheckpointError(f"The vocabulary holds the token {twice!r} twice; the checkpoint is damaged.")
    build = BUILDERS[vocabulary.model]
    try:
        built = build(vocabulary, ids)
    except CheckpointError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises plain Exception, and PanicException for damaged rules
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


def _add_tokens(built: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Add special tokens. Control tokens are special; user-defined ones are matched in the text before merging, longest
    first.
    """
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
    """Return types for a vocabulary without any: tokens with a named purpose are control tokens."""
    named = {vocabulary.bos_token_id, vocabulary.eos_token_id, vocabulary.pad_token_id, vocabulary.unk_token_id}
    named.add(vocabulary.sep_token_id)
    return [CONTROL if index in named else NORMAL for index in range(len(vocabulary.tokens))]


def _add_ends(built: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Put begin and end tokens around every encoded text, where the vocabulary requests them."""
    bos = vocabulary.bos_token_id if vocabulary.add_bos else None
    eos = vocabulary.eos_token_id if vocabulary.add_eos else None
    if vocabulary.add_sep:
        eos = vocabulary.sep_token_id
    # The library cannot handle a token with an empty text, which a damaged vocabulary may name: `or None`.
    first = None if bos is None else vocabulary.tokens[bos] or None
    last = None if eos is None else vocabulary.tokens[eos] or None
    if first is None and last is None:
        return
    second = first
    between = last
    if vocabulary.add_sep:
        # BERT writes `[CLS] A [SEP] B [SEP]`, RoBERTa `<s> A </s> </s> B </s>`.
        second = None if vocabulary.model == "wordpiece" else last
    set_ends(built, first, between, second, last)


def set_ends(
    built: tokenizers.Tokenizer, first: str | None, between: str | None, second: str | None, last: str | None
) -> None:
    """Put tokens around every encoded text; in a pair, everything of the second text has type 1.

    first: before a text.
    between: after the first text of a pair.
    second: before the second text of a pair.
    last: after a text, or after the second of a pair.
    """
    names = {name for name in (first, between, second, last) if name}
    single = [part for part in (first, "$A", last) if part]
    pair = [part for part in (first, "$A", between) if part]
    tail = [part for part in (second, "$B", last) if part]
    pair += [f"{part}:1" for part in tail]
    special = [(name, built.token_to_id(name)) for name in sorted(names)]
    try:
        built.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    except ValueError as error:
        shown = ", ".join(repr(name) for name, _ in special)
        raise CheckpointError(f"The tokens around a text ({shown}) cannot be used: {error}.") from error
