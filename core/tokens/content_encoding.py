"""Prompts to token ids, in which no character of content is part of a control token.

Owns: `ContentEncoder`: the check that all control tokens come from the template, and the encoding of prompts where they do
not. Never does: render, or decide which tokens control (`core.tokens.control_tokens` does).
Called by: the server's preparation, `LLM.chat`, pairs of texts, scripts.

Nearly every prompt is encoded as a whole, by the tokenizer as it is: it has as many control tokens as the template's own runs
of characters have alone, so none is of content. Otherwise those of the template are replaced by marks that nobody can guess,
which a second tokenizer knows in their place. It shares the model with the first one and has no control tokens, so all else,
across the borders of template and content too, is encoded as ordinary text.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, models, pre_tokenizers

from core.api.errors import RequestError
from core.tokens.control_tokens import control_tokens
from core.tokens.tokenizer import PairEncoding, Tokenizer
from core.tokens.written_text import Spans, plain, spans_of

MAX_RUNS = 512
"""Runs of a template's characters whose control tokens are remembered."""
MARK = "\U0010fffe"
"""Around a mark: no character, so no token begins or ends with it."""


class Match(NamedTuple):
    """A control token in a text: its first character, the one after its last, and its id."""

    start: int
    end: int
    token_id: int


class Run(NamedTuple):
    """A text that a template wrote. matches: its control tokens. is_clear: nothing around it can change them."""

    matches: tuple[Match, ...]
    is_clear: bool


class Encoded(NamedTuple):
    """A prompt. ids: its tokens. control_text: spellings of control tokens in its content, with their number."""

    ids: list[int]
    control_text: dict[str, int]


class ContentEncoder:
    """For one tokenizer and the templates that it is used with. Thread-safe.

    texts: sources of the templates, and markers of response formats, whose tokens count as control.
    Where the tokenizer allows control tokens in content, texts are encoded as they are.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str] = ()) -> None:
        self.tokenizer = tokenizer
        self._backend = tokenizer.backend
        self._control = control_tokens(self._backend, texts)
        unknown = tokenizer.unk_token_id
        # Unknown characters give this token, too, so it is looked for in the text, and not among the ids.
        self._unknown_id = -1 if unknown is None else unknown
        self._unknown = self._control.get(self._unknown_id)
        self._counted = frozenset(index for index in self._control if index != unknown)
        self._added = self._backend.get_added_tokens_decoder()
        self._spellings = "\0".join(["", *(token.content for token in self._added.values()), ""])
        self._run = lru_cache(maxsize=MAX_RUNS)(self._analysed)
        self._apart: _MarkedTokenizer | None = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of a text: a `WrittenText` of a template, or content alone. Raises RequestError for lone surrogates."""
        return self.encoded(text, add_special_tokens).ids

    def encoded(self, text: str, add_special_tokens: bool = False) -> Encoded:
        """As `encode`, with what in the content is spelled like control."""
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
        """Two contents as one sequence, as cross-encoders read them. Raises RequestError for lone surrogates."""
        pair = self.tokenizer.encode_pair(first, second)
        if self.tokenizer.allows_control or self._count(first + second, pair.ids) == self._pair_ends:
            return pair
        return self._separate().encode_pair(first, second)

    def _count(self, text: str, ids: Sequence[int]) -> int:
        count = len(list(filter(self._counted.__contains__, ids)))
        return count if self._unknown is None else count + self._count_unknown(text, ids)

    def _count_unknown(self, text: str, ids: Sequence[int]) -> int:
        """How often the unknown token is written out, maybe in letters that the normalizer makes it of."""
        spelling = self._unknown or ""
        normalizer = self._backend.normalizer
        written_out = text.count(spelling)
        if normalizer is None or self._unknown_id not in ids:
            return written_out
        return max(written_out, normalizer.normalize_str(text).count(spelling))

    def _checked(
        self, text: str, spans: Spans, runs: Sequence[Run], ids: list[int]
    ) -> tuple[list[int], dict[str, int]]:
        """The ids of a text that may hold control tokens of content, and those by their spelling."""
        matches = self._matches(text)
        own: list[Match] = []
        foreign: list[Match] = []
        for match in matches:
            (own if _is_within(match, spans) else foreign).append(match)
        num_unknown = sum(match.token_id == self._unknown_id for match in matches)
        if not foreign and (self._unknown is None or self._count_unknown(text, ids) == num_unknown):
            return ids, {}
        found = dict(Counter(self._control[match.token_id] for match in foreign))
        if self.tokenizer.allows_control:
            return ids, found
        for (start, _), run in zip(spans, runs, strict=True):
            moved = [Match(match.start + start, match.end + start, match.token_id) for match in run.matches]
            own += [match for match in moved if _overlaps(match, foreign)]
        return self._separate().encode(text, sorted(own)), found

    def _matches(self, text: str) -> list[Match]:
        """The control tokens of a text, in their order."""
        if self.tokenizer.refusal:
            return []
        encoding = self._backend.encode_batch([text], add_special_tokens=False)[0]
        found: list[Match] = []
        for (start, end), index in zip(encoding.offsets, encoding.ids, strict=True):
            if index not in self._counted:
                continue
            # without the white space that a token may swallow, which is the text's
            shown = text[start:end]
            spelling = self._control[index]
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
        """Whether a token is found in every text that holds these characters: nothing can overlap it or stand in its way."""
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
        """Control tokens that the tokenizer puts around each pair."""
        return self._count("", self.tokenizer.encode_pair("", "").ids)

    @cached_property
    def _ends(self) -> tuple[list[int], list[int]]:
        """The tokens that the tokenizer puts before and after each text."""
        letter = self.tokenizer.encode("a", add_special_tokens=False)
        whole = self.tokenizer.encode("a")
        start = next(at for at in range(len(whole) + 1) if whole[at : at + len(letter)] == letter)
        return whole[:start], whole[start + len(letter) :]

    def _separate(self) -> _MarkedTokenizer:
        if self._apart is None:
            self._apart = _MarkedTokenizer(self._backend, self._control, self._unknown_id)
        return self._apart


class _MarkedTokenizer:
    """A tokenizer that knows marks in the place of control tokens. It shares the model with `backend`."""

    def __init__(self, backend: tokenizers.Tokenizer, control: dict[int, str], unknown: int) -> None:
        self._backend = backend
        self._control = control
        self._unknown = unknown
        self._nonce = secrets.token_hex(16)
        # Unknown characters give the same id, so nobody could tell that a unigram model has spelled it.
        names_unknown = unknown in control and isinstance(backend.model, models.Unigram)
        self._spelled = frozenset([unknown] if names_unknown else [])
        self._tokenizer, self._ids = self._built(self._spelled)

    def encode(self, text: str, matches: Iterable[Match]) -> list[int]:
        """Ids of a text with these control tokens and no others."""
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
        """A pair without control tokens but those around it."""
        while True:
            pair = self._tokenizer.encode_batch([(first, second)], add_special_tokens=True)[0]
            rows = zip(pair.ids, pair.special_tokens_mask, strict=True)
            if self._is_text(first + second, [index for index, is_end in rows if not is_end]):
                return PairEncoding([self._ids.get(index, index) for index in pair.ids], pair.type_ids)

    def _is_text(self, text: str, ids: Iterable[int]) -> bool:
        """Whether the model spelled no control token itself, as unigram models do whose vocabulary holds them.

        False asks for another try: the model is given the spellings in two pieces from then on. Raises RequestError when
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

    def _built(self, spelled: Iterable[int]) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
        """The tokenizer, and the ids that its added tokens stand for. spelled: tokens that its model must not spell."""
        own = self._backend
        built = tokenizers.Tokenizer(own.model)
        if own.normalizer is not None:
            built.normalizer = own.normalizer
        steps = [] if own.pre_tokenizer is None else [own.pre_tokenizer]
        # Cut after its first character, a spelling reaches the model in two pieces, which it never joins.
        steps += [pre_tokenizers.Split(Regex(_rest(self._control[index])), "isolated") for index in spelled]
        if steps:
            built.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
        if own.post_processor is not None:
            built.post_processor = own.post_processor
        added = sorted(own.get_added_tokens_decoder().items())
        largest = max([own.get_vocab_size(with_added_tokens=True), *(index for index, _ in added)])
        fill = range(largest - own.get_vocab_size(with_added_tokens=False) + 1)
        # New ids follow the largest one, so that they are no others' ids.
        built.add_tokens([AddedToken(f"{MARK}{self._nonce}+{count}{MARK}", normalized=False) for count in fill])
        ids: dict[int, int] = {}
        tokens = [self._token(index, token) for index, token in added]
        built.add_tokens(tokens)
        for (index, _), token in zip(added, tokens, strict=True):
            got = built.token_to_id(token.content)
            if got != index and got is not None:
                ids[got] = index
        return built, ids

    def _token(self, index: int, token: AddedToken) -> AddedToken:
        """An added token, or the mark in its place."""
        if index not in self._control:
            return AddedToken(
                token.content,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
            )
        return AddedToken(self._mark(index), lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)


def _rest(spelling: str) -> str:
    """A regular expression of all of a spelling but its first character, behind that one."""
    first, *rest = (f"\\x{{{ord(character):x}}}" for character in spelling)
    return f"(?<={first}){''.join(rest)}"


def _is_within(match: Match, spans: Spans) -> bool:
    """Whether all characters of a control token are the template's."""
    at = bisect_right(spans, match.start, key=_first) - 1
    return at >= 0 and match.end <= spans[at][1]


def _overlaps(match: Match, others: Sequence[Match]) -> bool:
    """Whether any of the others, which are in order and do not overlap, overlaps this one."""
    at = bisect_right(others, match.start, key=_first)
    return any(other.start < match.end and match.start < other.end for other in others[max(0, at - 1) : at + 1])


def _first(span: tuple[int, ...]) -> int:
    return span[0]
