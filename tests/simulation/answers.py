"""What requests got, and whether it is what they should have got.

Owns: `Answer`, the prompts. Never does: ask. Called by: the fronts (fill answers in), the invariants (look at them).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from core.api.adapters import AdapterFacts
from core.api.errors import CoreError, RequestError
from tests.simulation.events import Ask
from tests.simulation.weights import token_after

if TYPE_CHECKING:
    from core_apis.durable.recorder import RequestRecorder
    from core_frontend.api.outputs import CompletionOutput
    from tests.simulation.world import World

GRACE_S = 1.0
"""Seconds after its deadline in which a request is told, when nothing stands still."""


def prompt_of(family: int, length: int) -> list[int]:
    """Prompts of one family are prefixes of each other."""
    return [(family * 31 + index * 7) % 900 + 8 for index in range(length)]


class Answer:
    """One request. floor: index of the oldest weights that its tokens may be of. ended: when; None: it runs."""

    def __init__(self, name: str, event: Ask, begun: float, floor: int, adapter: AdapterFacts | None = None) -> None:
        self.name = name
        self.adapter = adapter
        self._digest = "" if adapter is None else adapter.digest
        self.event = event
        self.begun = begun
        self.floor = floor
        self.tokens: dict[int, list[int]] = {choice: [] for choice in range(event.n)}
        self.reasons: dict[int, str] = {}
        self.error: CoreError | None = None
        self.left = False
        self.ended: float | None = None
        self.records: RequestRecorder | None = None
        self.again = False
        self.task: asyncio.Task[None] | None = None
        self._sentence: object = None
        self._repeated: dict[int, int] = {}
        self._at = dict.fromkeys(range(event.n), floor)
        self._prompt = prompt_of(event.family, event.length)

    def take(self, news: CompletionOutput, world: World) -> None:
        """Some more tokens. Each must be what some weights give that were in use, in the order in which they were."""
        if self.left:
            return
        choice, tokens, reason = news.index, news.token_ids, news.finish_reason
        if choice in self.reasons and (tokens or reason):
            world.violated("after_end", f"{self.name}:{choice} goes on after its end")
        known = self.tokens[choice]
        for token in self._new(choice, tokens, world):
            if self.left:
                return
            place = self._place(choice, known, token, world)
            if place is None:
                world.violated(
                    "token", f"{self.name}:{choice} got {token} at {len(known)}: {self._wanted(choice, world)}"
                )
                return
            self._at[choice] = place
            world.weights.seen(place)
            known.append(token)
        if reason is not None:
            self.reasons[choice] = reason
            self._sentence = news.stop_reason

    def begin_again(self, records: RequestRecorder) -> None:
        """The next server goes on with this stream: it repeats first what the reader has seen."""
        self.records = records
        self.again = True
        self.ended = None
        self.reasons.clear()
        self._repeated = {choice: 0 for choice in self.tokens}

    def _new(self, choice: int, tokens: list[int], world: World) -> list[int]:
        """Those tokens that the reader has not seen. The others must be what it has seen."""
        known = self.tokens[choice]
        at = self._repeated.get(choice, len(known))
        count = min(len(tokens), len(known) - at)
        if count <= 0:
            self._repeated.pop(choice, None)
            return tokens
        if tokens[:count] != known[at : at + count]:
            if not world.journal_failed:
                world.violated(
                    "changed", f"{self.name}:{choice} said {known[at : at + count]}, and says {tokens[:count]}"
                )
            self.left = True  # the reader is told that it cannot read on
        if at + count < len(known):
            self._repeated[choice] = at + count
        else:
            self._repeated.pop(choice, None)
        return tokens[count:]

    def end(self, now: float) -> None:
        """Nothing more comes."""
        self.ended = now

    def judge(self, world: World) -> None:
        """It has ended: was it told why?"""
        if self.left:
            return
        if self.error is not None:
            self._judge_error(world)
            return
        for choice in range(self.event.n):
            self._judge_end(choice, self.reasons.get(choice), world)
        took = (self.ended or 0.0) - self.begun
        limit = self.event.timeout_s
        if limit and not self.again and took > limit + GRACE_S + world.stood_still_s:
            world.violated("overdue", f"{self.name} took {took:.1f} s, and may take {limit:g} s")

    def _place(self, choice: int, known: list[int], token: int, world: World) -> int | None:
        """The index of the weights that gave a token: the same as before, or newer ones."""
        history = world.weights.states
        before = self._prompt + known
        for place in range(self._at[choice], len(history)):
            if token_after(history[place].adapted(self._digest), before, choice) == token:
                return place
        return None

    def _wanted(self, choice: int, world: World) -> str:
        before = self._prompt + self.tokens[choice]
        last = len(world.weights.states)
        states = [state.adapted(self._digest) for state in world.weights.states[:last]]
        found = {place: token_after(state, before, choice) for place, state in enumerate(states)}
        return f"by index of weights {found}, at least {self._at[choice]}"

    def _judge_error(self, world: World) -> None:
        error = self.error
        if isinstance(error, RequestError) and (error.status in (429, 408) or error.code == "journal_unavailable"):
            return
        if isinstance(error, RequestError) and error.status == 422 and world.may_convict:
            return
        world.violated("lost", f"{self.name} ended with {type(error).__name__}: {str(error)[:300]}")

    def _judge_end(self, choice: int, reason: str | None, world: World) -> None:
        name = f"{self.name}:{choice}"
        num_tokens = len(self.tokens[choice])
        if reason == "length":
            if num_tokens != self.event.max_tokens:
                world.violated("length", f"{name} ended with {num_tokens} of {self.event.max_tokens} tokens")
        elif reason == "abort":
            if not self.event.aborts and not world.book.may_have_aborted(self.begun, self.ended):
                world.violated("aborted", f"{name} was aborted, and nobody asked for that")
        elif reason == "timeout":
            if not self.event.timeout_s:
                world.violated("timeout", f"{name} timed out without a deadline")
        elif not (reason == "error" and (world.may_convict or world.step_failed)):
            world.violated("ended", f"{name} ended with {reason}: {self._sentence}")
