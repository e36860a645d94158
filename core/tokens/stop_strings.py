"""Stop strings in a stream of text.

Owns: what may be released. Never does: decode tokens. Called by: the engine's output processing.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the stop string that is complete first; how the text was cut into pieces makes no difference.

    stops: non-empty strings. include_stop: whether the released text holds the stop string.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._include = include_stop
        self._held = ""

    def push(self, delta: str) -> tuple[str, str | None]:
        """Take in text. Returns (text that may be shown, the stop string that was met or None).

        Text that may be the beginning of a stop string is held back; after a stop the rest is dropped.
        """
        text = self._held + delta
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            end, start, stop = min(found)
            self._held = ""
            return text[: end if self._include else start], stop
        keep = self._held_back(text)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut], None

    def flush(self) -> str:
        """The end of the text: what was held back."""
        held, self._held = self._held, ""
        return held

    def _held_back(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
