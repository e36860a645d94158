"""The `given` proposer: drafts are the tokens of an answer that is already known, and that is computed again.

Owns: the given answers of running sequences, and the place in each. Never does: compare (verification samples every position,
so a step accepts the given tokens or ends with the first one that differs). Called by: the worker, through
`core_runtime.contracts.Proposer`.

A request brings the answer in `extra_args["given_token_ids"]`, one list of token ids per choice. A given answer may have been
tokenized from its text, in another way than the model wrote it, so drafts go on behind the last two sampled tokens wherever
these stand next to each other in the given answer.
"""

from __future__ import annotations

from core_runtime.contracts import ProposerInput, RequestFacts

ARGUMENT = "given_token_ids"

Key = tuple[str, int]


class GivenAnswer:
    """One given answer. tokens: its token ids. place: index of the token that is expected next."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.place = 0
        self._last = -1
        self._followers: dict[tuple[int, int], list[int]] | None = None

    def advance(self, sampled: list[int]) -> None:
        """Move past tokens that were sampled."""
        for token in sampled:
            if self.place < len(self.tokens) and self.tokens[self.place] == token:
                self.place += 1
            else:
                self.place = self._after(self._last, token)
            self._last = token

    def _after(self, before: int, token: int) -> int:
        """Return the nearest place behind this pair of tokens; the end if there is none."""
        if self._followers is None:
            self._followers = {}
            for index in range(len(self.tokens) - 1):
                pair = self.tokens[index], self.tokens[index + 1]
                self._followers.setdefault(pair, []).append(index + 2)
        places = self._followers.get((before, token), ())
        return min(places, key=lambda place: abs(place - self.place), default=len(self.tokens))


class GivenProposer:
    """The proposer of one worker; implements `core_runtime.contracts.Proposer` and `KnowsRequests`."""

    def __init__(self) -> None:
        self._given: dict[Key, list[int]] = {}
        self._num_prompt_tokens: dict[Key, int] = {}
        self._running: dict[Key, GivenAnswer] = {}

    def on_request(self, key: Key, facts: RequestFacts) -> None:
        """Keep the answer that belongs to the sequence's choice. Anything but lists of token ids is no answer."""
        given = (facts.extra_args or {}).get(ARGUMENT)
        self._given[key] = _tokens(given, key[1])
        self._num_prompt_tokens[key] = facts.num_prompt_tokens

    def on_start(self, key: Key, token_ids: list[int]) -> None:
        """Begin at the first given token that the sequence does not have yet."""
        answer = GivenAnswer(self._given.pop(key, []))
        answer.advance(token_ids[self._num_prompt_tokens.pop(key, len(token_ids)) :])
        self._running[key] = answer

    def propose(self, batch: ProposerInput) -> list[list[int]]:
        """Return the given tokens that are expected next."""
        drafts: list[list[int]] = []
        for key, delta, budget in zip(batch.keys, batch.token_deltas, batch.budget, strict=True):
            answer = self._running[key]
            answer.advance(delta)
            drafts.append(answer.tokens[answer.place : answer.place + budget])
        return drafts

    def on_finished(self, key: Key) -> None:
        """Drop the sequence."""
        self._running.pop(key, None)


def _tokens(given: object, choice: int) -> list[int]:
    if not isinstance(given, list) or choice >= len(given) or not isinstance(given[choice], list):
        return []
    answer = given[choice]
    return answer if all(type(token) is int and token >= 0 for token in answer) else []
