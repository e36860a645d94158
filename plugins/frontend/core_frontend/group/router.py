"""The choice of an engine for a request, made by each front for itself.

Owns: `Router`: the homes of a prefix by rendezvous hashing, where this front has sent a prefix before, and the predicted wait
of each engine. Never does: talk to an engine, or to another front. Called by: the group of engines, and the simulation
`benchmarks.routing`.

All fronts hash alike, so they send a prompt to the engine that has its beginning cached without telling each other. An engine
that has too much to do is passed over for the next home: what one front has sent there and got no answer for stands for what
all fronts have.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

NUM_HOMES = 8
"""Engines among which the requests of one prefix are spread, when the first of them have too much to do."""
SLACK_S = 0.25
"""Seconds that a request may wait longer at its home than at the best of its homes."""
WORTH = 4.0
"""Of a front alone: the slack of an engine, in multiples of the work that it saves."""
MOST_PREFIXES = 65_536
"""Prefixes of which a router remembers the homes, and as many of which it remembers the engine."""

_GOLDEN, _MIX1, _MIX2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S32, _S1 = (np.uint64(bits) for bits in (30, 27, 31, 32, 1))


class Router:
    """The choices of one front.

    num_routers: fronts that send requests to the same engines; each is expected to send as many as this one.
    slack_s:     see `SLACK_S`.
    is_open:     by engine, whether it takes requests. Change it with `open` and `shut`.
    reported:    by engine, seconds of wait as it last reported.
    own:         by engine, seconds of work that this front has sent and that is not done.
    """

    def __init__(self, num_engines: int, num_routers: int = 1, slack_s: float = SLACK_S) -> None:
        self.num_routers = num_routers
        self.slack_s = slack_s
        self.is_open = [True] * num_engines
        self.reported = [0.0] * num_engines
        self.own = [0.0] * num_engines
        self._salts = _mixed(np.arange(1, num_engines + 1, dtype=np.uint64) * _GOLDEN)
        self._shut: list[int] = []
        self._homes: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self._sent: OrderedDict[int, int] = OrderedDict()

    def open(self, engine: int) -> None:
        """Let an engine take requests."""
        self._set_open(engine, value=True)

    def shut(self, engine: int) -> None:
        """Send nothing more to an engine. What it had cached is forgotten: the next engine of this number is empty."""
        self._set_open(engine, value=False)
        self._sent = OrderedDict((key, sent) for key, sent in self._sent.items() if sent != engine)

    def wait(self, engine: int) -> float:
        """Return the predicted wait of a request at an engine, in seconds."""
        return max(self.reported[engine], self.own[engine] * self.num_routers)

    def choose(self, keys: Sequence[int], saved_s: Sequence[float], head: int = 0) -> tuple[int, int]:
        """Return the engine for a prompt, and the index of its longest beginning that was sent there; -1: none was.

        keys:    of the prompt's beginnings, the shortest first; never empty.
        saved_s: for each key, seconds of work that an engine saves that has this beginning cached.
        head:    which of the keys names the home; all prompts with this beginning have the same one.

        Raises IndexError when no engine is open.
        """
        homes = self.homes(keys[head])
        known, saved = self._known(keys, saved_s, after=head if self.num_routers > 1 else -1)
        slack = self.slack_s
        if self.num_routers == 1:  # no other front has to find the same engine, so only what is saved counts
            slack = min(slack, WORTH * saved)
        if known is not None:
            homes = (known, *homes)
            slack += saved
        waits = [self.wait(home) for home in homes]
        limit = min(waits) + slack
        chosen = homes[next(index for index, wait in enumerate(waits) if wait <= limit)]
        cached = max((index for index, key in enumerate(keys) if self._sent.get(key) == chosen), default=-1)
        for key in keys:
            self._sent[key] = chosen
            self._sent.move_to_end(key)
        while len(self._sent) > MOST_PREFIXES:
            self._sent.popitem(last=False)
        return chosen, cached

    def homes(self, key: int) -> tuple[int, ...]:
        """Return the homes of a prefix among the open engines, the first one first; IndexError when none is open."""
        found = self._homes.get(key)
        if found is None:
            found = self._homes[key] = self._ranked(key)
            if len(self._homes) > MOST_PREFIXES:
                self._homes.popitem(last=False)
        if not found:
            raise IndexError("no engine takes requests")
        return found

    def _ranked(self, key: int) -> tuple[int, ...]:
        scores = self._salts ^ np.uint64(key & 0xFFFFFFFFFFFFFFFF)
        # In place: of a thousand engines, new arrays took half of the time.
        scores *= _MIX1
        scores ^= scores >> _S32
        scores *= _MIX2
        scores >>= _S1  # then no score is the lowest number as an int64, whose sorting is faster
        signed = scores.view(np.int64)
        signed[self._shut] = -1
        count = min(NUM_HOMES, len(signed) - len(self._shut))
        best = np.argpartition(signed, -NUM_HOMES)[-NUM_HOMES:] if len(signed) > NUM_HOMES else np.arange(len(signed))
        ranked = sorted(zip(signed[best].tolist(), best.tolist(), strict=True), reverse=True)
        return tuple(engine for _, engine in ranked[:count])

    def _known(self, keys: Sequence[int], saved_s: Sequence[float], after: int) -> tuple[int | None, float]:
        """Return the engine that got the longest known beginning, and what it saves. after: only longer ones than this
        count.
        """
        for index in range(len(keys) - 1, after, -1):
            engine = self._sent.get(keys[index])
            if engine is not None:
                return engine, saved_s[index]
        return None, 0.0

    def _set_open(self, engine: int, *, value: bool) -> None:
        self.is_open[engine] = value
        self._shut = [index for index, is_open in enumerate(self.is_open) if not is_open]
        self._homes.clear()


def _mixed(numbers: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return well mixed numbers, one for each (the finalizer of splitmix64)."""
    numbers = (numbers ^ (numbers >> _S30)) * _MIX1
    numbers = (numbers ^ (numbers >> _S27)) * _MIX2
    return numbers ^ (numbers >> _S31)
