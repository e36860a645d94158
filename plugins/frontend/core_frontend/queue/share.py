"""The share of the queue that all requests together, or those of one API key, take and may take.

Owns: `ShareLimits` and `QueueShare`: the counts, the limits, the refusal that says when to come back. Never does: know
requests by their ids (the queue limit does). Called by: `QueueLimit`.

The requests of one API key at other servers of this machine count as well where these share their counts (`CommonShare`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from core.api.errors import RequestError
from core_frontend.queue.foreseen import ForeseenPlaces
from core_frontend.queue.pace import Durations, Pace

if TYPE_CHECKING:
    from core_frontend.quote.forecast import Forecast

LONGEST_WAIT_S = 3600


class CommonShare(Protocol):
    """The same share at other servers."""

    @property
    def at_once(self) -> int:
        """Requests under way there."""

    @property
    def waiting(self) -> int:
        """Requests that wait there."""

    @property
    def tokens(self) -> int:
        """Prompt tokens that wait there."""

    def publish(self, at_once: int, waiting: int, tokens: int, end_s: float, begin_s: float) -> None:
        """Tell the others our counts, and the times at which a request probably ends, and begins; 0: none is there."""

    def seconds(self, *, until_end: bool) -> float | None:
        """Return the seconds until a request there probably ends, or begins; None: there is none."""

    def forget_dead(self) -> None:
        """Leave out what servers that have ended had published."""


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """The limits of one share; 0: no limit.

    at_once:  requests, from their arrival to their end.
    requests: waiting for their first token.
    tokens:   of the prompts of waiting requests.
    """

    at_once: int = 0
    requests: int = 0
    tokens: int = 0


class QueueShare:
    """The counts and limits of one share.

    whose:  for messages: `The server` or `This API key`.
    suffix: of the arguments that set its limits.
    code:   of its refusals.
    num_waiting, num_tokens: requests that wait for their first token, and their prompt tokens.
    num_arriving: requests whose bodies are being read.
    common: this share at other servers; None: there are none.
    """

    def __init__(self, limits: ShareLimits, whose: str, suffix: str, code: str, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.num_waiting = 0
        self.num_tokens = 0
        self.num_arriving = 0
        self.common: CommonShare | None = None
        self._whose = whose
        self._suffix = suffix
        self._code = code
        self._clock = clock
        self._begun: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._foreseen = {name: ForeseenPlaces() for name in ("at once", "requests", "tokens")}
        self._durations = Durations()
        self._requests = Pace(clock())
        self._tokens = Pace(clock())

    def request_limits(self) -> dict[str, int]:
        """Return the limits that a number of requests may never exceed, by the argument that sets each."""
        limits = {
            f"--max-num-reqs{self._suffix}": self.limits.at_once,
            f"--max-num-queued-reqs{self._suffix}": self.limits.requests,
        }
        return {argument: most for argument, most in limits.items() if most}

    def check(self, num_requests: int = 1, forecast: Forecast | None = None) -> None:
        """Raise RequestError (429) if `num_requests` more are not accepted.

        forecast: foretells when there is room; None: it is guessed.
        """
        try:
            self._check(num_requests, forecast)
        except RequestError:
            if self.common is None:
                raise
            self.common.forget_dead()
            self._check(num_requests, forecast)

    def _check(self, num_requests: int, forecast: Forecast | None) -> None:
        limits, common = self.limits, self.common
        own = len(self._begun) + self.num_arriving
        at_once = own if common is None else own + common.at_once
        if limits.at_once and at_once + num_requests > limits.at_once:
            self._refuse(
                f"{at_once} requests are under way already; at most {limits.at_once} may be (--max-num-reqs{self._suffix}).",
                self._soonest(
                    own,
                    lambda: (
                        self._when(forecast, "at once", at_once + num_requests - limits.at_once)
                        or self._durations.promise(self._clock(), self._begun.values())
                    ),
                    until_end=True,
                ),
            )
        own = self.num_waiting + self.num_arriving
        waiting = own if common is None else own + common.waiting
        if limits.requests and waiting + num_requests > limits.requests:
            missing = waiting + num_requests - limits.requests
            self._refuse(
                f"{waiting} requests wait already; at most {limits.requests} may (--max-num-queued-reqs{self._suffix}).",
                self._soonest(
                    own,
                    lambda: self._when(forecast, "requests", missing) or self._requests.promise(self._clock(), missing),
                    until_end=False,
                ),
            )

    def check_tokens(self, num_tokens: int, forecast: Forecast | None = None) -> None:
        """Raise RequestError (429) if `num_tokens` more may not wait.

        One request may always wait, however long it is.
        """
        most, common = self.limits.tokens, self.common
        if not most:
            return
        others = 0 if common is None else common.tokens
        if not self.num_waiting + others or self.num_tokens + others + num_tokens <= most:
            return
        if others and common is not None:
            common.forget_dead()
            others = common.tokens
            if not self.num_waiting + others or self.num_tokens + others + num_tokens <= most:
                return
        waiting = self.num_tokens + others
        missing = min(waiting + num_tokens - most, waiting)
        self._refuse(
            f"{waiting} prompt tokens wait already, and this request has {num_tokens}; at most {most} may wait "
            f"(--max-num-queued-tokens{self._suffix}).",
            self._soonest(
                self.num_waiting,
                lambda: self._when(forecast, "tokens", missing) or self._tokens.promise(self._clock(), missing),
                until_end=False,
            ),
        )

    def enter(self, request_id: str, num_tokens: int) -> None:
        """Add a waiting request."""
        now = self._clock()
        if not self.num_waiting:
            self._requests.begin(now)
            self._tokens.begin(now)
        self._begun[request_id] = now
        self._waiting[request_id] = num_tokens
        self.num_waiting += 1
        self.num_tokens += num_tokens
        self._publish()

    def leave(self, request_id: str) -> None:
        """Remove a waiting request, which then runs."""
        num_tokens = self._waiting.pop(request_id)
        now = self._clock()
        self.num_waiting -= 1
        self.num_tokens -= num_tokens
        self._requests.free(now, 1)
        self._tokens.free(now, num_tokens)
        self._publish()

    def end(self, request_id: str) -> None:
        """Remove a request that has ended."""
        begun = self._begun.pop(request_id, None)
        if begun is not None:
            self._durations.end(self._clock() - begun)
        self._publish()

    def arrive(self, count: int) -> None:
        """Add requests whose bodies are being read; below 0: remove them."""
        self.num_arriving += count
        self._publish()

    def _publish(self) -> None:
        if self.common is None:
            return
        now = self._clock()
        at_once = len(self._begun) + self.num_arriving
        waiting = self.num_waiting + self.num_arriving
        end = self._durations.next_end(now, next(iter(self._begun.values()), now)) if at_once else 0.0
        begin = now + self._requests.seconds_each(now) if waiting else 0.0
        self.common.publish(at_once, waiting, self.num_tokens, end, begin)

    def _soonest(self, own: int, foretold: Callable[[], float], *, until_end: bool) -> float:
        """Return the seconds until there is probably room: here, where requests of ours are in the way, or at another server.

        own: number of ours. foretold: the seconds until one of them makes room.
        """
        elsewhere = None if self.common is None else self.common.seconds(until_end=until_end)
        if own or elsewhere is None:
            here = foretold()
            return here if elsewhere is None else min(here, elsewhere)
        return elsewhere

    def _when(self, forecast: Forecast | None, limit: str, units: int) -> float | None:
        """Return the seconds until there is room for `units` more under a limit, as foretold; None: nothing is foretold yet."""
        if forecast is None or not forecast.is_sure:
            return None
        if limit == "at once":
            freeing = [(seconds, 1) for seconds, _ in forecast.ends(self._begun)]
        else:
            usual = max(self.num_tokens // max(self.num_waiting, 1), 1) if limit == "tokens" else 1
            counts = self._waiting if limit == "tokens" else dict.fromkeys(self._waiting, 1)
            owed = self._foreseen[limit].owed(self._clock())
            times = forecast.first_tokens(self._waiting, (owed + units) // usual + 1)
            freeing = [(seconds, counts.get(name, usual)) for seconds, name in times]
        return self._foreseen[limit].promise(self._clock(), freeing, units)

    def _refuse(self, why: str, seconds: float) -> None:
        retry_after = min(LONGEST_WAIT_S, max(1, math.ceil(seconds)))
        raise RequestError(
            f"{self._whose} is busy: {why} Try again in {retry_after} s.",
            status=429,
            code=self._code,
            retry_after=retry_after,
        )
