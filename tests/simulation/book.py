"""What callers asked of the engine's lifecycle, and what may be true after it.

Owns: `Book`: each call with its beginning, its end and whether it took effect. Never does: look at the engine.
Called by: the fronts (write), the invariants (ask what may be).

Calls that overlap may have taken effect in any order, and one whose engine died may have or not: so the book answers with all
states that are possible.
"""

import math
from dataclasses import dataclass

from core.api.errors import RequestError

PAUSED: dict[str, bool] = {"pause": True, "resume": False}
ASLEEP: dict[str, bool] = {"sleep": True, "wake": False}


@dataclass(slots=True)
class Entry:
    """One call. effect: whether it took effect; None: unknown."""

    name: str
    mode: str
    begun: float
    ended: float = math.inf
    effect: bool | None = None

    def close(self, now: float, error: Exception | None, *, cut: bool = False) -> None:
        """It is over. cut: its process died."""
        self.ended = now
        if cut:
            return
        if error is None:
            self.effect = True
        elif isinstance(error, RequestError):
            self.effect = False
        elif isinstance(error, TimeoutError) and self.mode == "wait" and self.name == "pause":
            self.effect = False  # the caller hung up while it waited: that takes the pause back


class Book:
    """All calls of one schedule."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._past: list[Entry] = []

    def open(self, name: str, mode: str, now: float) -> Entry:
        """A call begins."""
        entry = Entry(name, mode, now)
        self.entries.append(entry)
        return entry

    def begin_new_file(self) -> None:
        """The server has died: nobody holds the next one."""
        self._past += self.entries
        self.entries = []

    def may_be_paused(self) -> set[bool]:
        """Whether a pause may last that somebody asked for. A call that is not over holds the engine while it waits."""
        found = self._last_of(PAUSED)
        if any(entry.ended == math.inf and entry.mode == "wait" for entry in self.entries):
            found.add(True)
        return found

    def may_be_asleep(self) -> set[bool]:
        """The same of sleep."""
        found = self._last_of(ASLEEP)
        if any(entry.name == "wake_part" and entry.effect is not False for entry in self.entries):
            found.add(False)  # both parts may have been woken one by one
        return found

    def may_have_aborted(self, begun: float, ended: float | None) -> bool:
        """Whether a call that ends requests overlaps this time."""
        until = math.inf if ended is None else ended
        aborting = [
            entry for entry in (*self._past, *self.entries) if entry.mode == "abort"
        ]  # also one that is refused later
        return any(entry.begun <= until and entry.ended >= begun for entry in aborting)

    def _last_of(self, effects: dict[str, bool]) -> set[bool]:
        """What the calls may have left behind that may have been the last ones to take effect."""
        calls = [entry for entry in self.entries if entry.name in effects and entry.effect is not False]
        sure = [entry for entry in calls if entry.effect]
        begun = max((entry.begun for entry in sure), default=-math.inf)
        found = {effects[entry.name] for entry in calls if entry.ended >= begun}
        if not sure:
            found.add(False)
        return found
