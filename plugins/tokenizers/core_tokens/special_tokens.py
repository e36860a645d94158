"""Tokens configured outside the vocabulary: added tokens, special ones, and those around a text.

Owns: applying `tokenizer_config.json` to a tokenizer. Never does: read files. Called by: `core_tokens.directory`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken

from core_tokens.tokenizer_config import NAMED, token_text
from core_tokens.tokenizer_source import Vocabulary
from core_tokens.vocabularies.vocabulary import set_ends

logger = logging.getLogger(__name__)


def add_tokens(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> None:
    """Add tokens outside the vocabulary, in the order of their ids; the named ones are special."""
    special = _special_texts(settings)
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for index, row in sorted(settings["added_tokens_decoder"].items()):
        text = row["content"]
        if text in known:
            continue
        is_special = bool(row.get("special")) or text in special
        token = _added(row, is_special)
        (backend.add_special_tokens if is_special else backend.add_tokens)([token])
        got = backend.token_to_id(text)
        if got != index:
            logger.warning("The added token %r should have the id %d, and got %s.", text, index, got)
    for text in special:
        if text in known:
            continue
        # As in transformers, a token that the vocabulary lacks gets a new id, which the model may not have.
        backend.add_special_tokens([AddedToken(text, normalized=False, special=True)])


def _special_texts(settings: Mapping[str, Any]) -> dict[str, None]:
    """Return the special tokens, each once, in the order in which missing ones get their ids."""
    others = [key for key in settings if key.endswith("_token") and key not in NAMED]
    texts = [token_text(settings.get(key)) for key in (*NAMED, *others)]
    texts += _listed(settings.get("extra_special_tokens"))
    texts += _listed(settings.get("additional_special_tokens"))
    return dict.fromkeys(text for text in texts if text is not None)


def _added(row: Mapping[str, Any], special: bool) -> AddedToken:
    return AddedToken(
        row["content"],
        single_word=bool(row.get("single_word")),
        lstrip=bool(row.get("lstrip")),
        rstrip=bool(row.get("rstrip")),
        normalized=bool(row.get("normalized", not special)),
        special=special,
    )


def _listed(value: Any) -> Iterable[str]:
    """Return the texts of additional special tokens, from a list or a mapping of names."""
    rows = value.values() if isinstance(value, dict) else value or ()
    return [text for text in map(token_text, rows) if text is not None]


def named_ids(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], vocabulary: Vocabulary | None
) -> dict[str, int | None]:
    """Return the ids of `bos_token`, `eos_token`, ...: from the settings, or else from the vocabulary."""
    named: dict[str, int | None] = {}
    for key in NAMED:
        text = token_text(settings.get(key))
        named[key] = None if text is None else backend.token_to_id(text)
    if vocabulary is not None:
        for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
            if key not in settings:
                named[key] = getattr(vocabulary, f"{key}_id")
    return named


def set_asked_ends(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], named: Mapping[str, int | None]) -> None:
    """Apply `add_bos_token` and `add_eos_token`: if either is given, both replace the format's own ends, as in
    transformers. A tokenizer.json already contains them.
    """
    ends: list[str | None] = []
    for asked, key in (("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")):
        index = named[key]
        wanted = bool(settings.get(asked)) and index is not None
        ends.append(backend.id_to_token(index) if wanted and index is not None else None)
    bos, eos = ends
    set_ends(backend, bos, eos, bos, eos)
