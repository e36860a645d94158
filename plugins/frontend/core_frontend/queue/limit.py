"""The limits on waiting and running requests, and when a refused client may come back.

Owns: `QueueLimit`: which requests wait, and their API keys. Never does: queue (the scheduler does), answer (the server
does), or count (the shares do). Called by: `AsyncEngine`, the server's intake.

A request waits until its first output. The limits are checked when requests arrive, before their bodies are even read,
so a refused one costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.api.config import SchedulerConfig
from core_frontend.queue.common import CommonCounts
from core_frontend.queue.common_key import CommonOfKey
from core_frontend.queue.share import QueueShare, ShareLimits

if TYPE_CHECKING:
    from core_frontend.quote.forecast import Forecast

PER_KEY = "-per-key"
"""The suffix of arguments that limit one API key."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one request. num_tokens: of its prompt."""

    num_tokens: int
    shares: tuple[QueueShare, ...]


class QueueLimit:
    """The requests that wait for the engine, and their limits.

    max_requests: limit on waiting requests; 0 is no limit.
    max_tokens: limit on the tokens of their prompts; 0 is no limit.
    per_key: limits of each API key.
    clock: seconds.
    forecast: foretells when places become free; None: it is guessed from when they did.

    Methods take the number of the request's API key; None without keys, in which case only the common limits apply.
    The batch class has shares of its own with the same limits: what waits there takes no place of any other request.
    """

    def __init__(
        self,
        max_requests: int,
        max_tokens: int,
        clock: Callable[[], float] = time.monotonic,
        per_key: ShareLimits = ShareLimits(),  # noqa: B008 (frozen)
    ) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.forecast: Forecast | None = None
        self._clock = clock
        self._per_key = per_key
        limits = ShareLimits(requests=max_requests, tokens=max_tokens)
        self._everybody = QueueShare(limits, "The server", "", "queue_full", clock)
        self._everybody_flex = QueueShare(limits, "The batch class", "", "queue_full", clock)
        self._keys: dict[tuple[int, bool], QueueShare] = {}
        self._common: CommonCounts | None = None
        self._waiting: dict[str, Place] = {}
        self._live: dict[str, Place] = {}

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    def __len__(self) -> int:
        """Return the number of waiting requests, including those whose bodies are being read."""
        return len(self._waiting) + self._everybody.num_arriving

    def request_limits(self, *, with_keys: bool) -> dict[str, int]:
        """Return the limits on the prompts of one HTTP request, by the argument that sets each.

        with_keys: whether requests need keys.
        """
        limits = self._everybody.request_limits()
        if with_keys:
            limits |= QueueShare(self._per_key, "", PER_KEY, "", self._clock).request_limits()
        return limits

    def share_with(self, common: CommonCounts) -> None:
        """Count the requests of each key at other servers too, from now on."""
        self._common = common
        for (key, flex), share in self._keys.items():
            share.common = CommonOfKey(common, key, flex=flex)

    def check(self, key: int | None = None) -> None:
        """Raise RequestError (429) if no further request is accepted."""
        for share in self._shares(key):
            share.check(forecast=self.forecast)

    @contextmanager
    def arriving(self, key: int | None = None) -> Iterator[Arrival]:
        """Reserve a place for a request while it is prepared. Raises RequestError (429) if there is none."""
        self.check(key)
        arrival = Arrival(key, self._shares(key))
        try:
            if self._common is not None and key is not None:
                # Another server may have taken the last place since: both have published theirs, so one of them sees it.
                self._shares(key)[0].check(0, self.forecast)
            yield arrival
        finally:
            arrival.end()

    def enter(
        self, num_tokens: Mapping[str, int], key: int | None = None, *, again: bool = False, flex: bool = False
    ) -> None:
        """Add waiting requests, all or none; num_tokens: of each one's prompt, by id. Those that already wait are left
        as they are.

        again: whether an earlier server accepted them, so that they are not refused. flex: they are of the batch class.
        Raises RequestError (429) if there is no room. One request may always wait, however long it is.
        """
        new = {request_id: count for request_id, count in num_tokens.items() if request_id not in self._waiting}
        if not new:
            return
        shares = self._shares(key, flex=flex)
        if not again:
            total = sum(new.values())
            for share in shares:
                share.check(len(new), self.forecast)
                share.check_tokens(total, self.forecast)
        for request_id, count in new.items():
            place = Place(count, shares)
            self._waiting[request_id] = place
            self._live[request_id] = place
            for share in shares:
                share.enter(request_id, count)

    def leave(self, request_id: str) -> None:
        """Note that a request waits no more, because it has its first output. Others are ignored."""
        place = self._waiting.pop(request_id, None)
        if place is None:
            return
        for share in place.shares:
            share.leave(request_id)
        if self.forecast is not None:
            self.forecast.first(request_id)

    def end(self, request_id: str) -> None:
        """Note that a request has ended, whether it waited or ran. Others are ignored."""
        self.leave(request_id)
        place = self._live.pop(request_id, None)
        if place is None:
            return
        for share in place.shares:
            share.end(request_id)

    def _shares(self, key: int | None, *, flex: bool = False) -> tuple[QueueShare, ...]:
        """Return the shares in which requests of that key count: its own first, so that the error names the key's
        limit.
        """
        everybody = self._everybody_flex if flex else self._everybody
        if key is None:
            return (everybody,)
        share = self._keys.get((key, flex))
        if share is None:
            share = QueueShare(self._per_key, "This API key", PER_KEY, "key_limit_reached", self._clock)
            self._keys[key, flex] = share
            if self._common is not None:
                share.common = CommonOfKey(self._common, key, flex=flex)
        return share, everybody


def queue_limit(config: SchedulerConfig) -> QueueLimit:
    """Return the limits of a configuration."""
    per_key = ShareLimits(
        at_once=config.max_num_reqs_per_key,
        requests=config.max_num_queued_reqs_per_key,
        tokens=config.max_num_queued_tokens_per_key,
    )
    return QueueLimit(config.max_num_queued_reqs, config.max_num_queued_tokens, per_key=per_key)


class Arrival:
    """The place of one request that is being prepared. `end` releases it, once; a second call does nothing.

    begin: monotonic seconds.
    key: the number of the API key that it came with.
    """

    def __init__(self, key: int | None, shares: tuple[QueueShare, ...]) -> None:
        self.begin = time.monotonic()
        self.key = key
        self._shares = shares
        for share in shares:
            share.arrive(1)

    def end(self) -> None:
        """Release the place: the request is prepared, or never will be."""
        for share in self._shares:
            share.arrive(-1)
        self._shares = ()
