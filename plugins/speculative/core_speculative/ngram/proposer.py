"""The `ngram` proposer: find the longest suffix that occurred before, and propose what followed it.

Owns: one index for each running sequence. Never does: look at logits, verify, or decide the number of drafts.
Called by: the worker, through `core_runtime.contracts.Proposer`.
"""

from __future__ import annotations

from collections.abc import Sequence

from core_runtime.contracts import ProposerInput


class SuffixIndex:
    """The tokens of one sequence, with the place where each n-gram was last followed by another token.

    Adding a token costs one table entry for each length; finding a suffix costs one look-up for each.
    """

    __slots__ = ("_followed_at", "_lengths", "tokens")

    def __init__(self, shortest: int, longest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._followed_at: dict[tuple[int, ...], int] = {}
        self.tokens: list[int] = []

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens. Each one is recorded as the continuation of the n-grams that end just before it."""
        tokens = self.tokens
        for token in token_ids:
            end = len(tokens)
            for length in self._lengths:
                if length <= end:
                    self._followed_at[tuple(tokens[end - length :])] = end
            tokens.append(token)

    def continuation(self, limit: int) -> list[int]:
        """Return at most `limit` tokens that followed the latest earlier occurrence of the longest known suffix.

        If the earlier text reaches the end of the sequence, the copy continues with its own first tokens, so a loop is
        proposed as a whole.
        """
        tokens = self.tokens
        end = len(tokens)
        for length in self._lengths:
            if length > end:
                continue
            suffix = tuple(tokens[end - length :])
            start = self._followed_at.get(suffix)
            if start is not None:
                known = tokens[start : start + limit]
                return [known[i % len(known)] for i in range(limit)]
        return []


class NgramProposer:
    """The n-gram proposer of one worker; implements `core_runtime.contracts.Proposer`.

    shortest, longest: suffix lengths in tokens, 1 ≤ shortest ≤ longest.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._indexes: dict[tuple[str, int], SuffixIndex] = {}

    def on_start(self, key: tuple[str, int], token_ids: list[int]) -> None:
        """Index all known tokens. A sequence that returns after a preemption is indexed again."""
        index = SuffixIndex(self._shortest, self._longest)
        index.extend(token_ids)
        self._indexes[key] = index

    def propose(self, batch: ProposerInput) -> list[list[int]]:
        """Add the accepted tokens, and copy what followed the same n-gram before."""
        drafts: list[list[int]] = []
        for key, delta, budget in zip(batch.keys, batch.token_deltas, batch.budget, strict=True):
            index = self._indexes[key]
            index.extend(delta)
            draft = index.continuation(budget) if budget > 0 else []
            drafts.append(draft)
        return drafts

    def on_finished(self, key: tuple[str, int]) -> None:
        """Drop the index of the sequence."""
        self._indexes.pop(key, None)
