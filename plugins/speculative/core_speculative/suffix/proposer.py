"""The `suffix` proposer: what followed the newest words, in the sequence's own text or in earlier answers.

Owns: the texts of running sequences, and which draft is taken. Never does: look at logits, verify, or draft for one tenant
from another one's answers. Called by: the worker, through `core_runtime.contracts.Proposer`.

The drafts are as long as the words are that were found again (times a factor), and end where what followed them differs too
much from place to place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from core_runtime.contracts import ProposerInput, RequestFacts
from core_speculative.suffix.answers import EarlierAnswers
from core_speculative.suffix.arguments import SuffixArguments
from core_speculative.suffix.text_index import TextIndex

Key = tuple[str, int]

SHORTEST: Final = 2
SHORTEST_SHARED: Final = 4
"""Tokens of the shortest context, in the sequence itself and in earlier answers, where short words say little."""
LEARNED_FOR_NEW: Final = 2
"""Tokens of ended answers that are taken in for each new token, so that no step takes many and all are taken in."""


@dataclass(slots=True)
class Running:
    """A sequence in the batch.

    owner: whose earlier answers it may see.
    text: all known tokens.
    num_learned: of these that are no new part of the answer: the prompt, and what was there before a preemption.
    """

    owner: tuple[str, str | None]
    text: TextIndex
    num_learned: int


class SuffixProposer:
    """Implements `core_runtime.contracts.Proposer` and `KnowsRequests`."""

    def __init__(self, arguments: SuffixArguments) -> None:
        self._least = arguments.suffix_decoding_min_token_prob
        lengths = context_lengths(arguments)
        self._longest = lengths[-1]
        self._lengths = lengths
        self._most = most_drafts(arguments)
        shared = [length for length in lengths if length >= SHORTEST_SHARED] or lengths[-1:]
        self._answers = EarlierAnswers(
            shared, arguments.suffix_decoding_max_cached_requests, arguments.suffix_decoding_max_cached_tokens
        )
        self._facts: dict[Key, RequestFacts] = {}
        self._running: dict[Key, Running] = {}

    def on_request(self, key: Key, facts: RequestFacts) -> None:
        """Whose text comes next."""
        self._facts[key] = facts

    def on_start(self, key: Key, token_ids: list[int]) -> None:
        """Index all known tokens; a sequence that comes back starts anew."""
        facts = self._facts.pop(key, None) or RequestFacts("", None)
        text = TextIndex(self._lengths, loops=True)
        text.extend(token_ids)
        owner = (facts.tenant, facts.cache_salt)
        self._running[key] = Running(owner, text, len(token_ids))

    def propose(self, batch: ProposerInput) -> list[list[int]]:
        """Take the accepted tokens in, and draft what is most likely to follow them."""
        drafts: list[list[int]] = []
        num_new = 0
        for key, delta, budget in zip(batch.keys, batch.token_deltas, batch.budget, strict=True):
            running = self._running[key]
            running.text.extend(delta)
            num_new += len(delta)
            draft = self._draft(running, budget) if budget > 0 else []
            drafts.append(draft)
        self._answers.learn(num_new * LEARNED_FOR_NEW)
        return drafts

    def on_finished(self, key: Key) -> None:
        """Forget the sequence, but not its answer."""
        self._facts.pop(key, None)
        running = self._running.pop(key, None)
        if running is not None:
            answer = running.text.tokens[running.num_learned :]
            self._answers.add(running.owner, answer)

    def _draft(self, running: Running, budget: int) -> list[int]:
        """The draft of which most tokens are likely right; of equal ones the sequence's own."""
        end = running.text.tokens[-self._longest :]
        best: list[int] = []
        most_expected = 0.0
        for text in (running.text, *self._answers.texts(running.owner)):
            found = text.find(end)
            if not found.length:
                continue
            most = min(self._most[found.length], budget)
            draft, expected = text.follow(found, most, self._least)
            if expected > most_expected:
                best = draft
                most_expected = expected
        return best


def context_lengths(arguments: SuffixArguments) -> Sequence[int]:
    """Lengths of the contexts that are looked for, rising: each twice the one before, up to the one with most drafts."""
    depth = arguments.suffix_decoding_max_tree_depth
    longest = math.ceil(depth / (1 + arguments.suffix_decoding_max_spec_factor))
    lengths: list[int] = []
    length = SHORTEST
    while length < longest:
        lengths.append(length)
        length *= 2
    return [*lengths, longest]


def most_drafts(arguments: SuffixArguments) -> dict[int, int]:
    """The most drafts behind a context of each length: words and drafts together are no longer than the depth."""
    depth = arguments.suffix_decoding_max_tree_depth
    factor = arguments.suffix_decoding_max_spec_factor
    most: dict[int, int] = {}
    for length in context_lengths(arguments):
        allowed = int(factor * length)
        most[length] = min(allowed, depth - length)
    return most
