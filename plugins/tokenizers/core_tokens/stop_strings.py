"""Stop strings in a stream of text.

Owns: the decision which text can be released. Never does: decode tokens. Called by: the engine's output processing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """Any number of stop strings as one automaton (Aho and Corasick's), shared by the choices of a request.

    Its states are the prefixes of stop strings; state 0 is the empty prefix. The cost per character is independent of
    the number of stop strings.

    lengths: characters of each state.
    found: the longest stop string that ends a state, or None.
    """

    __slots__ = ("_fallbacks", "_next", "found", "lengths")

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fallbacks = [0]
        self.lengths = [0]
        self.found: list[str | None] = [None]
        for stop in stops:
            if stop:
                self._add(stop)
        self._link()

    def step(self, state: int, character: str) -> int:
        """Return the state after one more character: the longest suffix of the text that is a prefix of a stop string."""
        following = self._next[state].get(character)
        while following is None and state:
            state = self._fallbacks[state]
            following = self._next[state].get(character)
        return following or 0

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = len(self._next)
                self._next[state][character] = following
                self._next.append({})
                self._fallbacks.append(0)
                self.lengths.append(self.lengths[state] + 1)
                self.found.append(None)
            state = following
        self.found[state] = stop

    def _link(self) -> None:
        """Compute the fallback of each state, shorter states first: the longest shorter state that is its suffix."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, following in self._next[state].items():
                shorter = self.step(self._fallbacks[state], character)
                self._fallbacks[following] = shorter
                self.found[following] = self.found[following] or self.found[shorter]
                waiting.append(following)


class StopMatcher:
    """Detects the stop string that is completed first, independently of how the text is split into pieces.

    include_stop: whether the released text includes the stop string.
    """

    def __init__(self, stops: StopStrings, include_stop: bool = False) -> None:
        self._stops = stops
        self._include = include_stop
        self._state = 0
        self._held = ""

    def push(self, delta: str) -> tuple[str, str | None]:
        """Add text. Returns (text that can be released, the stop string that was met or None). Returns (text that may
        be shown, the stop string that was met or None).

        Text that may be the beginning of a stop string is held back; after a stop the rest is dropped.
        """
        stops = self._stops
        state = self._state
        for position, character in enumerate(delta, start=1):
            state = stops.step(state, character)
            stop = stops.found[state]
            if stop is not None:
                text = self._held + delta[:position]
                self._state = 0
                self._held = ""
                return text if self._include else text.removesuffix(stop), stop
        text = self._held + delta
        cut = len(text) - stops.lengths[state]
        self._state = state
        self._held = text[cut:]
        return text[:cut], None

    def flush(self) -> str:
        """Finish; returns the text that was held back."""
        held = self._held
        self._held = ""
        self._state = 0
        return held
