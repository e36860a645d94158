"""The proposer. Drafts are verified by sampling, so a poor draft costs time and never changes the text."""

from __future__ import annotations

import itertools

from core_runtime.contracts import ProposerInput

Key = tuple[str, int]


class Proposer:
    """Implements `core_runtime.contracts.Proposer`: after a token comes what came after it the last time."""

    def __init__(self, repeat: int) -> None:
        self.repeat = repeat
        self._followers: dict[Key, dict[int, int]] = {}
        self._last: dict[Key, int] = {}

    def on_start(self, key: Key, token_ids: list[int]) -> None:
        """Learn a sequence with all its known tokens; it may come back after a preemption."""
        self._followers[key] = dict(itertools.pairwise(token_ids))
        self._last[key] = token_ids[-1]

    def propose(self, batch: ProposerInput) -> list[list[int]]:
        """Take in the new tokens of each sequence, then follow the chain from the last one."""
        drafts = []
        for key, delta, budget in zip(batch.keys, batch.token_deltas, batch.budget, strict=True):
            followers = self._followers[key]
            for token in delta:
                followers[self._last[key]] = token
                self._last[key] = token
            drafts.append(self._chain(followers, self._last[key], budget))
        return drafts

    def on_finished(self, key: Key) -> None:
        """Forget the sequence."""
        self._followers.pop(key, None)
        self._last.pop(key, None)

    def _chain(self, followers: dict[int, int], token: int, budget: int) -> list[int]:
        chain: list[int] = []
        while len(chain) < budget and token in followers and chain.count(followers[token]) < self.repeat:
            token = followers[token]
            chain.append(token)
        return chain
