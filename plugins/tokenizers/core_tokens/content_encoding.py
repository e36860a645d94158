"""Encoding of prompts to token ids, such that no character of content becomes part of a control token.

Owns: `ContentEncoder`: the check that all control tokens come from the template, and the encoding of prompts where they
do not. Never does: render, or decide which tokens control (`core_tokens.control_tokens` does).
Called by: the server's preparation, `LLM.chat`, pairs of texts, scripts.

Nearly every prompt is encoded as a whole by the unchanged tokenizer: if it has as many control tokens as the template's
own runs of characters, none comes from content. Otherwise the template's control tokens are replaced by unguessable
marks, which a second tokenizer knows in their place. It shares the model with the first one and has no control tokens,
so all else, across the borders of template and content too, is encoded as ordinary text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from core_tokens.chat.written_text import Spans, plain, spans_of
from core_tokens.control_tokens import control_tokens
from core_tokens.marked_tokenizer import MarkedTokenizer, Match, PluggedMarks
from core_tokens.plugged import PluggedBackend
from core_tokens.tokenizer import PairEncoding, Tokenizer

MAX_RUNS = 512
"""Limit on the template runs whose control tokens are cached."""
MAX_ENCODERS = 8
"""Limit on the encoders cached per tokenizer, for as many sets of templates."""


class Run(NamedTuple):
    """A text that a template wrote. matches: its control tokens. is_clear: no surrounding text can change them."""

    matches: tuple[Match, ...]
    is_clear: bool


class Encoded(NamedTuple):
    """An encoded prompt. ids: its tokens. control_text: spellings of control tokens in its content, with their counts."""

    ids: list[int]
    control_text: dict[str, int]


class ContentEncoder:
    """The encoder for one tokenizer and the templates used with it. Thread-safe.

    texts: sources of the templates, and markers of response formats, whose tokens count as control. Where the tokenizer
    allows control tokens in content, texts are encoded as they are.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str] = ()) -> None:
        self.tokenizer = tokenizer
        self._backend = tokenizer.backend
        self._added = self._backend.get_added_tokens_decoder()
        self.control = control_tokens(self._added, texts)
        unknown = tokenizer.unk_token_id
        # Unknown characters also give this token, so it is searched for in the text instead of in the ids.
        self._unknown_id = -1 if unknown is None else unknown
        self._unknown = self.control.get(self._unknown_id)
        self.counted = frozenset(index for index in self.control if index != unknown)
        self._spellings = "\0".join(["", *(token.content for token in self._added.values()), ""])
        self._run = lru_cache(maxsize=MAX_RUNS)(self._analysed)
        self._apart: MarkedTokenizer | PluggedMarks | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Iterable[str] = ()) -> ContentEncoder:
        """Return the encoder for these texts, cached while the tokenizer is used with few other sets."""
        kept: dict[tuple[str, ...], ContentEncoder] = tokenizer.content_encoders
        key = tuple(texts)
        found = kept.get(key)
        if found is None:
            if len(kept) >= MAX_ENCODERS:
                kept.clear()
            found = kept[key] = cls(tokenizer, key)
        return found

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of a text: a template's `WrittenText`, or pure content. Raises RequestError for lone
        surrogates.
        """
        return self.encoded(text, add_special_tokens).ids

    def encoded(self, text: str, add_special_tokens: bool = False) -> Encoded:
        """Encode like `encode`, and report the content that is spelled like control tokens."""
        whole = plain(text)
        spans = spans_of(text)
        ids = self.tokenizer.encode(whole, add_special_tokens=False)
        runs = [self._run(whole[start:end]) for start, end in spans]
        expected = sum(len(run.matches) for run in runs)
        found: dict[str, int] = {}
        if not all(run.is_clear for run in runs) or self._count(whole, ids) != expected:
            ids, found = self._checked(whole, spans, runs, ids)
        if add_special_tokens:
            first, last = self._ends
            ids = [*first, *ids, *last]
        return Encoded(ids, found)

    def encode_pair(self, first: str, second: str) -> PairEncoding:
        """Encode two contents as one sequence, for cross-encoders. Raises RequestError for lone surrogates."""
        pair = self.tokenizer.encode_pair(first, second)
        if self.tokenizer.allows_control or self._count(first + second, pair.ids) == self._pair_ends:
            return pair
        return self._separate().encode_pair(first, second)

    def _count(self, text: str, ids: Sequence[int]) -> int:
        count = len(list(filter(self.counted.__contains__, ids)))
        return count if self._unknown is None else count + self._count_unknown(text, ids)

    def _count_unknown(self, text: str, ids: Sequence[int]) -> int:
        """Return how often the unknown token is spelled out, possibly with letters that the normalizer maps to it."""
        spelling = self._unknown or ""
        normalizer = self._backend.normalizer
        written_out = text.count(spelling)
        if normalizer is None or self._unknown_id not in ids:
            return written_out
        normalized: str = normalizer.normalize_str(text)
        return max(written_out, normalized.count(spelling))

    def _checked(
        self, text: str, spans: Spans, runs: Sequence[Run], ids: list[int]
    ) -> tuple[list[int], dict[str, int]]:
        """Return the ids of a text that may contain control tokens in its content, and those by their spelling."""
        matches = self._matches(text)
        own: list[Match] = []
        foreign: list[Match] = []
        for match in matches:
            (own if _is_within(match, spans) else foreign).append(match)
        num_unknown = sum(match.token_id == self._unknown_id for match in matches)
        if not foreign and (self._unknown is None or self._count_unknown(text, ids) == num_unknown):
            return ids, {}
        found = dict(Counter(self.control[match.token_id] for match in foreign))
        if self.tokenizer.allows_control:
            return ids, found
        for (start, _), run in zip(spans, runs, strict=True):
            moved = [Match(match.start + start, match.end + start, match.token_id) for match in run.matches]
            own += [match for match in moved if _overlaps(match, foreign)]
        return self._separate().encode(text, sorted(own)), found

    def _matches(self, text: str) -> list[Match]:
        """Return the control tokens of a text, in order."""
        if self.tokenizer.refusal:
            return []
        encoding = self._backend.encode_batch([text], add_special_tokens=False)[0]
        found: list[Match] = []
        for (start, end), index in zip(encoding.offsets, encoding.ids, strict=True):
            if index not in self.counted:
                continue
            # without the white space that a token may absorb, which belongs to the text
            shown = text[start:end]
            spelling = self.control[index]
            at = shown.find(spelling)
            if at < 0:
                at = len(shown) - len(shown.lstrip())
                spelling = shown.strip()
            found.append(Match(start + at, start + at + len(spelling), index))
        if self._unknown is not None and self._unknown in text:
            places = [match.span() for match in re.finditer(re.escape(self._unknown), text)]
            found += [Match(start, end, self._unknown_id) for start, end in places]
            found.sort()
        return found

    def _analysed(self, text: str) -> Run:
        matches = tuple(self._matches(text))
        return Run(matches, all(self._is_clear(text[match.start : match.end], match.token_id) for match in matches))

    def _is_clear(self, found: str, token_id: int) -> bool:
        """Whether a token is matched in every text with these characters: nothing can overlap it or prevent the match."""
        token = self._added[token_id]
        spelling: str = token.content
        is_spelled_by_model = found != spelling or (token.special and self.tokenizer.split_special_tokens)
        if is_spelled_by_model or token.single_word or (token.normalized and self._backend.normalizer is not None):
            return False
        if self._spellings.count(spelling) > 1:
            return False
        for cut in range(1, len(spelling)):
            if f"{spelling[:cut]}\0" in self._spellings or f"\0{spelling[cut:]}" in self._spellings:
                return False
        return True

    @cached_property
    def _pair_ends(self) -> int:
        """Return the number of control tokens that the tokenizer puts around each pair."""
        return self._count("", self.tokenizer.encode_pair("", "").ids)

    @cached_property
    def _ends(self) -> tuple[list[int], list[int]]:
        """Return the tokens that the tokenizer puts before and after each text."""
        letter = self.tokenizer.encode("a", add_special_tokens=False)
        whole = self.tokenizer.encode("a")
        start = next(at for at in range(len(whole) + 1) if whole[at : at + len(letter)] == letter)
        return whole[:start], whole[start + len(letter) :]

    def _separate(self) -> MarkedTokenizer | PluggedMarks:
        if self._apart is None and isinstance(self._backend, PluggedBackend):
            self._apart = PluggedMarks(self._backend)
        elif self._apart is None:
            self._apart = MarkedTokenizer(self._backend, self.control, self._unknown_id)
        return self._apart


def _is_within(match: Match, spans: Spans) -> bool:
    """Whether all characters of a control token are the template's own."""
    at = bisect_right(spans, match.start, key=_first) - 1
    return at >= 0 and match.end <= spans[at][1]


def _overlaps(match: Match, others: Sequence[Match]) -> bool:
    """Whether any of the others, which are sorted and disjoint, overlaps this one."""
    at = bisect_right(others, match.start, key=_first)
    return any(other.start < match.end and match.start < other.end for other in others[max(0, at - 1) : at + 1])


def _first(span: tuple[int, ...]) -> int:
    return span[0]
