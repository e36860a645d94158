"""The `suffix` proposer: drafts what followed the newest tokens, in the sequence's own text or in earlier answers.

Owns: the texts of running sequences, and the choice of a draft. Never does: look at logits, verify, or draft for one
tenant or adapter from another one's answers. Called by: the worker, through `core_runtime.contracts.Proposer`.

A draft is as long as the matched context (times a factor). It ends where the continuations at different places differ
too much.
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
"""Tokens of the shortest context in the sequence itself, and in earlier answers, where short contexts predict
little.
"""
LEARNED_FOR_NEW: Final = 2
"""Tokens of finished answers that are indexed for each new token. This bounds the work of a step, and still indexes all
answers.
"""


@dataclass(slots=True)
class Running:
    """A sequence in the batch.

    owner: owner of the earlier answers that it may use.
    text: all known tokens.
    num_learned: number of tokens that are not a new part of the answer: the prompt, and everything before a preemption.
    """

    owner: tuple[str, str | None, str]
    text: TextIndex
    num_learned: int


class SuffixProposer:
    """The suffix proposer of one worker; implements `core_runtime.contracts.Proposer` and `KnowsRequests`."""

    def __init__(self, arguments: SuffixArguments) -> None:
        self._least = arguments.suffix_decoding_min_token_prob
        lengths = context_lengths(arguments)
        self._longest = lengths[-1]
        self._lengths = lengths
        self._most = most_drafts(arguments)
        shared = [length for length in lengths if length >= SHORTEST_SHARED] or lengths[-1:]
        self.answers = EarlierAnswers(
            shared, arguments.suffix_decoding_max_cached_requests, arguments.suffix_decoding_max_cached_tokens
        )
        self._facts: dict[Key, RequestFacts] = {}
        self._running: dict[Key, Running] = {}

    def on_request(self, key: Key, facts: RequestFacts) -> None:
        """Store the facts of a request for `on_start`, which follows."""
        self._facts[key] = facts

    def on_start(self, key: Key, token_ids: list[int]) -> None:
        """Index all known tokens. A sequence that returns after a preemption is indexed again."""
        facts = self._facts.pop(key, None) or RequestFacts("", None)
        text = TextIndex(self._lengths, loops=True)
        text.extend(token_ids)
        owner = (facts.tenant, facts.cache_salt, facts.adapter)
        self._running[key] = Running(owner, text, len(token_ids))

    def propose(self, batch: ProposerInput) -> list[list[int]]:
        """Add the accepted tokens, and draft what is most likely to follow them."""
        drafts: list[list[int]] = []
        num_new = 0
        for key, delta, budget in zip(batch.keys, batch.token_deltas, batch.budget, strict=True):
            running = self._running[key]
            running.text.extend(delta)
            num_new += len(delta)
            draft = self._draft(running, budget) if budget > 0 else []
            drafts.append(draft)
        self.answers.learn(num_new * LEARNED_FOR_NEW)
        return drafts

    def on_finished(self, key: Key) -> None:
        """Drop the sequence, but queue its answer for later requests."""
        self._facts.pop(key, None)
        running = self._running.pop(key, None)
        if running is not None:
            answer = running.text.tokens[running.num_learned :]
            self.answers.add(running.owner, answer)

    def _draft(self, running: Running, budget: int) -> list[int]:
        """Return the draft with the most tokens expected to be right; the sequence's own text wins a tie."""
        end = running.text.tokens[-self._longest :]
        best: list[int] = []
        most_expected = 0.0
        for text in (running.text, *self.answers.texts(running.owner)):
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
    """Return the lengths of contexts that are searched, ascending: each twice the previous one, up to the one with most
    drafts.
    """
    depth = arguments.suffix_decoding_max_tree_depth
    longest = math.ceil(depth / (1 + arguments.suffix_decoding_max_spec_factor))
    lengths: list[int] = []
    length = SHORTEST
    while length < longest:
        lengths.append(length)
        length *= 2
    return [*lengths, longest]


def most_drafts(arguments: SuffixArguments) -> dict[int, int]:
    """Return the maximum number of drafts after a context of each length: context and drafts together do not exceed the
    depth.
    """
    depth = arguments.suffix_decoding_max_tree_depth
    factor = arguments.suffix_decoding_max_spec_factor
    most: dict[int, int] = {}
    for length in context_lengths(arguments):
        allowed = int(factor * length)
        most[length] = min(allowed, depth - length)
    return most
