"""A tokenizer with marks in place of control tokens, so that any text spelled like a control token stays text.

Owns: `MarkedTokenizer`, its marks, and `PluggedMarks`. Never does: decide which matches of a text are control.
Called by: `core_tokens.content_encoding`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, models, pre_tokenizers

from core.api.errors import RequestError
from core_tokens.plugged import Piece, PluggedBackend
from core_tokens.tokenizer import PairEncoding

MARK = "\U0010fffe"
"""Delimiter of a mark: a noncharacter, so no token begins or ends with it."""


class Match(NamedTuple):
    """A control token in a text: its first character, one past its last, and its id."""

    start: int
    end: int
    token_id: int


class MarkedTokenizer:
    """A tokenizer with marks in place of control tokens. It shares the model with `backend`."""

    def __init__(self, backend: tokenizers.Tokenizer, control: dict[int, str], unknown: int) -> None:
        self._backend = backend
        self._control = control
        self._unknown = unknown
        self._nonce = secrets.token_hex(16)
        # Unknown characters give the same id, so a spelling by a unigram model could not be detected.
        names_unknown = unknown in control and isinstance(backend.model, models.Unigram)
        self._spelled = frozenset([unknown] if names_unknown else [])
        self._tokenizer, self._ids = self._built(self._spelled)

    def encode(self, text: str, matches: Iterable[Match]) -> list[int]:
        """Return the ids of a text with exactly these control tokens."""
        if self._nonce in text:
            raise RequestError("The text holds a mark of this server; send it again.", param="messages")
        parts: list[str] = []
        end = 0
        for match in matches:
            parts += [text[end : match.start], self._mark(match.token_id)]
            end = match.end
        parts.append(text[end:])
        marked = "".join(parts)
        while True:
            ids = self._tokenizer.encode_batch_fast([marked], add_special_tokens=False)[0].ids
            if self._is_text(text, ids):
                return [self._ids.get(index, index) for index in ids]

    def encode_pair(self, first: str, second: str) -> PairEncoding:
        """Encode a pair with no control tokens except those around it."""
        while True:
            pair = self._tokenizer.encode_batch([(first, second)], add_special_tokens=True)[0]
            rows = zip(pair.ids, pair.special_tokens_mask, strict=True)
            if self._is_text(first + second, [index for index, is_end in rows if not is_end]):
                return PairEncoding([self._ids.get(index, index) for index in pair.ids], pair.type_ids)

    def _is_text(self, text: str, ids: Iterable[int]) -> bool:
        """Whether the model spelled no control token itself, as unigram models with such tokens in the vocabulary do.

        False requests a retry: from then on the model receives such spellings in two pieces. Raises RequestError when
        that does not help.
        """
        spelled = self._control.keys() & set(ids)
        if self._unknown in self._spelled or self._control.get(self._unknown, "") not in text:
            spelled.discard(self._unknown)
        if not spelled:
            return True
        if spelled <= self._spelled:
            raise RequestError("The text spells control tokens that cannot be told from text.", param="messages")
        self._spelled |= spelled
        self._tokenizer, self._ids = self._built(self._spelled)
        return False

    def _mark(self, index: int) -> str:
        return f"{MARK}{self._nonce}-{index}{MARK}"

    def _built(self, spelled: frozenset[int]) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
        """Build the tokenizer, with the ids that its added tokens stand for. spelled: tokens that its model must not
        spell.
        """
        own = self._backend
        built = tokenizers.Tokenizer(own.model)
        if own.normalizer is not None:
            built.normalizer = own.normalizer
        steps = [] if own.pre_tokenizer is None else [own.pre_tokenizer]
        if spelled:
            # Split after its first character, a spelling reaches the model in two pieces, which it never joins.
            rests = _rests(self._control[index] for index in spelled)
            steps.append(pre_tokenizers.Split(Regex(rests), "isolated"))
        if steps:
            built.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
        if own.post_processor is not None:
            built.post_processor = own.post_processor
        added = sorted(own.get_added_tokens_decoder().items())
        largest = max([own.get_vocab_size(with_added_tokens=True), *(index for index, _ in added)])
        fill = range(largest - own.get_vocab_size(with_added_tokens=False) + 1)
        # New ids follow the largest one, so that they collide with no other.
        gap = [AddedToken(f"{MARK}{self._nonce}+{count}{MARK}", normalized=False) for count in fill]
        ids: dict[int, int] = {}
        tokens = [self._token(index, token) for index, token in added]
        built.add_tokens([*gap, *tokens])
        for (index, _), token in zip(added, tokens, strict=True):
            got = built.token_to_id(token.content)
            if got != index and got is not None:
                ids[got] = index
        return built, ids

    def _token(self, index: int, token: AddedToken) -> AddedToken:
        """Return an added token, or the mark that replaces it."""
        if index not in self._control:
            return AddedToken(
                token.content,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
            )
        return AddedToken(self._mark(index), lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)


class PluggedMarks:
    """The same for a tokenizer that is a plugin, which is passed the texts between control tokens in any case."""

    def __init__(self, backend: PluggedBackend) -> None:
        self._backend = backend

    def encode(self, text: str, matches: Iterable[Match]) -> list[int]:
        """Return the ids of a text with exactly these control tokens."""
        ids: list[int] = []
        end = 0
        for match in matches:
            ids += [*self._backend.plain_ids(self._read(text[end : match.start])), match.token_id]
            end = match.end
        return ids + self._backend.plain_ids(self._read(text[end:]))

    def encode_pair(self, first: str, second: str) -> PairEncoding:
        """Encode a pair with no control tokens except those around it."""
        texts = [self._read(text) for text in (first, second)]
        pieces = [Piece(at, 0, text, self._backend.plain_ids(text)) for at, text in enumerate(texts)]
        pair = self._backend.pair(pieces)
        return PairEncoding(pair.ids, pair.type_ids)

    def _read(self, text: str) -> str:
        normalizer = self._backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))


def _rests(spellings: Iterable[str]) -> str:
    """Return a regular expression for each spelling without its first character, preceded by that character."""
    rests: dict[str, list[str]] = {}
    for spelling in sorted(spellings, key=len, reverse=True):
        first, *rest = (f"\\x{{{ord(character):x}}}" for character in spelling)
        rests.setdefault(first, []).append("".join(rest))
    return "|".join(f"(?<={first})(?:{'|'.join(each)})" for first, each in rests.items())
