"""Answers to earlier requests, separate for each tenant.

Owns: the limit of what is kept. Never does: draft. Called by: the proposer.

There are two generations. New answers go into the newer one. Once that has half of the limit, it becomes the older one,
and the previous older one is dropped. An answer that is given repeatedly is therefore always present.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence

from core_speculative.suffix.text_index import BORDER, TextIndex

Owner = Hashable


class Generation:
    """One generation of answers, by owner. lengths: lengths of contexts in tokens."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths
        self._texts: dict[Owner, TextIndex] = {}
        self.num_tokens = 0
        self.num_answers = 0

    def text(self, owner: Owner) -> TextIndex | None:
        """Return the index of an owner's answers, or None."""
        return self._texts.get(owner)

    def extend(self, owner: Owner, token_ids: Sequence[int]) -> None:
        """Add tokens to an owner's answers."""
        text = self._texts.get(owner)
        if text is None:
            text = self._texts[owner] = TextIndex(self._lengths)
        text.extend(token_ids)
        self.num_tokens += len(token_ids)


class EarlierAnswers:
    """The newest answers of all owners.

    lengths: lengths of contexts in tokens, ascending.
    most_answers, most_tokens: limits of what is kept.
    """

    def __init__(self, lengths: Sequence[int], most_answers: int, most_tokens: int) -> None:
        self._lengths = lengths
        self._most_answers = most_answers
        self._most_tokens = most_tokens
        self._newer = Generation(lengths)
        self._older = Generation(lengths)
        self._waiting: deque[tuple[Owner, list[int]]] = deque()
        self.num_waiting = 0

    def add(self, owner: Owner, token_ids: list[int]) -> None:
        """Queue an answer. It is searchable once `learn` has indexed it."""
        kept = token_ids[: self._most_tokens // 2]
        if not kept or not self._most_answers:
            return
        text = [*kept, BORDER]
        self._waiting.append((owner, text))
        self.num_waiting += len(text)
        while self.num_waiting > self._most_tokens:
            _, forgotten = self._waiting.popleft()
            self.num_waiting -= len(forgotten)

    def learn(self, most: int) -> None:
        """Index up to `most` tokens of the queued answers."""
        while most > 0 and self._waiting:
            owner, token_ids = self._waiting.popleft()
            now = token_ids[:most]
            rest = token_ids[most:]
            self._make_room(len(now), is_last=not rest)
            self._newer.extend(owner, now)
            self.num_waiting -= len(now)
            most -= len(now)
            if rest:
                self._waiting.appendleft((owner, rest))

    def texts(self, owner: Owner) -> Iterator[TextIndex]:
        """Yield the indexes of an owner's answers, the newer one first."""
        for generation in (self._newer, self._older):
            text = generation.text(owner)
            if text is not None:
                yield text

    def _make_room(self, num_tokens: int, *, is_last: bool) -> None:
        """Start a new generation when the newer one is full. An answer counts when its last tokens are added."""
        newer = self._newer
        is_full = newer.num_tokens + num_tokens > self._most_tokens // 2
        if is_full or newer.num_answers >= max(self._most_answers // 2, 1):
            self._older = newer if self._most_answers > 1 else Generation(self._lengths)
            newer = self._newer = Generation(self._lengths)
        newer.num_answers += is_last
