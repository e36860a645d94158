"""Requests that have been sent to another engine of a group with a ticket for their pages, until their first token there.

Owns: `MovedArrivals`: what became of their pages, and the speed of the link between each two engines. Never does: send one.
Called by: the moves of a group, and its client with each message of an engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from core.api.errors import EngineDeadError, UtilityError
from core.api.messages import EngineOutput
from core_frontend.group.member import Member
from core_frontend.output_processor import OutputProcessor, RequestState
from core_frontend.quote.link import Link
from core_supervision.link.zmq_client import ZmqClient

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 10.0
"""Seconds after which a first token is no longer waited for: the other engine's batch is full."""
LOOK_S: Final = 0.02
LEARN_BYTES: Final = 1 << 20
"""Transfers of fewer bytes teach nothing about a link: their time is that of the messages around them."""


@dataclass(slots=True)
class Arrival:
    """A request whose first token of its new engine is awaited. lease: of its pages; None: they are computed."""

    state: RequestState
    target: Member
    link: Link
    lease: Mapping[str, Any] | None = None
    begin: float = field(default_factory=time.monotonic)
    seen: asyncio.Event = field(default_factory=asyncio.Event)


class MovedArrivals:
    """The requests of one front that are on their way.

    states: the live requests. count: called with each outcome, `moved` or `not_received`.

    links: by the places of the engines, (from, to).
    """

    def __init__(self, states: OutputProcessor, count: Callable[[str], None]) -> None:
        self.links: defaultdict[tuple[int, int], Link] = defaultdict(Link)
        self._states = states
        self._count = count
        self._arrivals: dict[str, Arrival] = {}
        self._questions: set[asyncio.Task[None]] = set()

    def expect(self, name: str, arrival: Arrival) -> None:
        """Look for a request that is about to be sent."""
        self._arrivals[name] = arrival

    def forget(self, name: str) -> None:
        """Look no longer for a request; unknown names are ignored."""
        self._arrivals.pop(name, None)

    def close(self) -> None:
        """End the questions that are open."""
        for task in self._questions:
            task.cancel()

    async def until_seen(self, arrival: Arrival, is_there: Callable[[], bool]) -> None:
        """Wait for the first token of a request in its new engine; not for ever, if the batch there is full.

        is_there: whether it is still that engine's.
        """
        end = time.monotonic() + PATIENCE_S
        while not arrival.seen.is_set() and is_there() and time.monotonic() < end:
            await asyncio.sleep(LOOK_S)

    def saw(self, member: Member, outputs: Sequence[EngineOutput]) -> None:
        """Look for requests that have arrived among the outputs of an engine."""
        if not self._arrivals:
            return
        for output in outputs:
            arrival = self._arrivals.get(output.request_id)
            if arrival is not None and arrival.target is member:
                del self._arrivals[output.request_id]
                arrival.seen.set()
                question = asyncio.create_task(self._learn(arrival))
                self._questions.add(question)
                question.add_done_callback(self._questions.discard)
        self._arrivals = {name: each for name, each in self._arrivals.items() if self._states.find(name) is each.state}

    async def _learn(self, arrival: Arrival) -> None:
        """Count what became of the pages of a request that has arrived, and learn how fast they came."""
        seconds = time.monotonic() - arrival.begin
        outcome = await asked(arrival.target.client, "moved_kv", request_id=arrival.state.request_id)
        if outcome is None or outcome["why"]:
            self._count("not_received")
            if outcome is not None:
                logger.info("Pages of a moved request did not all come: %s.", outcome["why"])
            # Pages that did not come took at least as long.
            arrival.link.observe(0 if arrival.lease is None else arrival.lease["num_bytes"], seconds)
            return
        self._count("moved")
        if outcome["num_bytes"] >= LEARN_BYTES:
            arrival.link.observe(outcome["num_bytes"], outcome["seconds"])


async def asked(client: ZmqClient, method: str, **arguments: Any) -> Any:
    """Call an engine that may be gone; None if it is, or refuses: nothing depends on the answer."""
    try:
        return await client.call(method, arguments)
    except (EngineDeadError, UtilityError) as error:
        logger.debug("%s: %s", method, error)
        return None
