"""Rules by which cached blocks and pages give way: `arc` and `cost` of --kv-eviction.

Owns: these two; `lru` and their interface are the core's. Never does: keep blocks or bytes. Called by: `core.kv.eviction`,
for the block pool and for host memory.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from operator import itemgetter

from core.kv.eviction import LeastRecent, Name

MOST_STEPS = 16
"""Half powers of two, up or down, to which a worth is limited: there are twice as many queues."""


class Adaptive(LeastRecent[Name]):
    """`arc` (Megiddo and Modha, 2003): names found once and names found again, and pages that were evicted of each.

    A page that returns after its eviction shows which of the two should have been larger. A scan finds nothing again. Unlike
    there, it begins as `lru`, and the older of both gives way while those found once are no more than they should be: a prefix
    is found again as a whole, and its newest turn, found once, is needed as much as the rest.
    """

    def __init__(self) -> None:
        super().__init__()
        self._again: OrderedDict[Name, int] = OrderedDict()
        self._pages: dict[Name, Hashable] = {}
        self._found: set[Name] = set()
        self._past_once: OrderedDict[Hashable, None] = OrderedDict()
        self._past_again: OrderedDict[Hashable, None] = OrderedDict()
        self._target = math.inf
        self._num_pushed = 0

    def __iter__(self) -> Iterator[Name]:
        yield from self._listed
        yield from self._again

    def cached(self, name: Name, page: Hashable, worth: float, tenant: str = "", size: int = 1) -> None:
        """Add a name; one whose page was evicted lately counts as found again."""
        self._pages[name] = page
        once, again = self._past_once, self._past_again
        if page in once:
            self._target = min(self._target + max(1.0, len(again) / len(once)), len(self._pages))
        elif page in again:
            self._target = max(min(self._target, len(self._pages)) - max(1.0, len(once) / len(again)), 0.0)
        else:
            return
        once.pop(page, None)
        again.pop(page, None)
        self._found.add(name)

    def hit(self, name: Name, worth: float) -> None:
        """Count a name as found again."""
        self._found.add(name)

    def push(self, name: Name) -> None:
        """Let a name give way, after all of its kind."""
        self._num_pushed += 1
        (self._again if name in self._found else self._listed)[name] = self._num_pushed

    def remove(self, name: Name) -> None:
        """Let a listed name stay."""
        del (self._again if name in self._again else self._listed)[name]

    def oldest(self) -> Name:
        """Return the oldest of those found once while they are more than they should be, else the oldest of all."""
        if not self._listed or not self._again:
            return next(iter(self))
        once, once_pushed = next(iter(self._listed.items()))
        again, again_pushed = next(iter(self._again.items()))
        num_once = len(self._pages) - len(self._found)
        return once if num_once > self._target or once_pushed < again_pushed else again

    def evict(self, name: Name) -> float:
        """Remove a listed name and remember its page, among as many as are cached."""
        self.remove(name)
        past = self._past_again if name in self._found else self._past_once
        past[self._pages[name]] = None
        if len(past) > len(self._pages):
            past.popitem(last=False)
        self.forget(name)
        return 1.0

    def forget(self, name: Name) -> None:
        """Drop a name that is not listed and no longer cached."""
        del self._pages[name]
        self._found.discard(name)

    def clear(self) -> None:
        """Drop all names, and pages that were evicted."""
        super().clear()
        for table in (self._again, self._pages, self._found, self._past_once, self._past_again):
            table.clear()
        self._target = math.inf


class Costly(LeastRecent[Name]):
    """`cost` (GreedyDual): a name outlives others by its worth, and ages as others give way.

    Names of about the same worth share a queue, in which the oldest is the least worth; so only the queues are compared.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[int, OrderedDict[Name, float]] = {}
        self._worth: dict[Name, float] = {}
        self._age = 0.0

    def cached(self, name: Name, page: Hashable, worth: float, tenant: str = "", size: int = 1) -> None:
        """Add a name."""
        self._worth[name] = worth

    def hit(self, name: Name, worth: float) -> None:
        """Raise the worth of a name that belongs to a longer prefix now."""
        self._worth[name] = max(worth, self._worth[name])

    def push(self, name: Name) -> None:
        """Let a name give way, the later the more it is worth."""
        step = max(-MOST_STEPS, min(round(2 * math.log2(self._worth[name])), MOST_STEPS))
        self._queues.setdefault(step, OrderedDict())[name] = self._age + 2 ** (step / 2)
        self._listed[name] = step

    def remove(self, name: Name) -> None:
        """Let a listed name stay."""
        step = self._listed.pop(name)
        del self._queues[step][name]
        if not self._queues[step]:
            del self._queues[step]

    def oldest(self) -> Name:
        """Return the name with the least worth, by its age."""
        firsts = [next(iter(queue.items())) for queue in self._queues.values()]
        name, _ = min(firsts, key=itemgetter(1))
        return name

    def evict(self, name: Name) -> float:
        """Remove a listed name; all others are older now."""
        worth = self._worth[name]
        self._age = max(self._age, self._queues[self._listed[name]][name])
        self.remove(name)
        self.forget(name)
        return worth

    def forget(self, name: Name) -> None:
        """Drop a name that is not listed and no longer cached."""
        del self._worth[name]

    def clear(self) -> None:
        """Drop all names."""
        super().clear()
        self._worth.clear()
        self._queues.clear()
