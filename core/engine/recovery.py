"""The pause between the death of an engine and the next engine that goes on with all that ran.

Owns: `Recovery`: the next client, the check that its engine computes the same, and sending all live requests to it.
Never does: decide whether there is a next engine (its source does), or read what engines say. Called by: `AsyncEngine`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from core.api.errors import EngineDeadError, RequestError
from core.api.messages import EngineReady
from core.engine.output_processor import OutputProcessor, RequestState
from core.engine.revival import EngineSource
from core.engine.streams import RequestStreams
from core.engine.zmq_client import ZmqClient

logger = logging.getLogger(__name__)

SAME = ("numerics", "max_model_len")
"""What must be equal in the next engine, by the names of `EngineReady`: otherwise a text would go on with other tokens."""


class Patient(Protocol):
    """Whose engine died."""

    def adopt(self, client: ZmqClient) -> None:
        """From now on this client is in use."""
        ...

    def give_up(self, error: EngineDeadError) -> None:
        """There is no further engine."""
        ...


class Recovery:
    """One for each `AsyncEngine`.

    requests: those that live.
    streams:  where a request's error goes.
    since:    monotonic seconds at which the pause began; None: there is none.
    """

    def __init__(
        self, source: EngineSource, patient: Patient, requests: OutputProcessor, streams: RequestStreams
    ) -> None:
        self.since: float | None = None
        self._source = source
        self._patient = patient
        self._requests = requests
        self._streams = streams
        self._task: asyncio.Task[None] | None = None

    @property
    def holds(self) -> bool:
        """Whether new requests are only kept: they are sent with all others when the pause is over."""
        return self.since is not None

    def begin(self, dead: ZmqClient, error: EngineDeadError) -> None:
        """An engine has died of `error`. dead: its client."""
        if self.since is None:
            self.since = time.monotonic()
        self._stop()
        self._task = asyncio.create_task(self._run(dead, error))

    async def close(self) -> None:
        """End the pause, if there is one, without another engine."""
        self._stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        await self._source.close()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, dead: ZmqClient, error: EngineDeadError) -> None:
        try:
            await dead.close()
            client = await self._next(dead.ready, error)
        except EngineDeadError as last:
            self._patient.give_up(last)
        except Exception as defect:
            logger.error("The engine could not be replaced.", exc_info=defect)
            sentence = f"{error}\nIt could not be replaced ({type(defect).__name__}: {defect})."
            self._patient.give_up(EngineDeadError(sentence, cause=error.cause))
        else:
            self._patient.adopt(client)
            await self._go_on(client)

    async def _next(self, before: EngineReady, error: EngineDeadError) -> ZmqClient:
        """The next client. Raises EngineDeadError when there is none, or none that computes the same."""
        client = await self._source.next(error)
        for name in SAME:
            was = getattr(before, name)
            is_now = getattr(client.ready, name)
            if was != is_now:
                await client.close()
                raise EngineDeadError(
                    f"{error}\nThe engine that was started in its place has another {name} ({is_now!r}, it was {was!r}), "
                    "so no answer can go on; restart the server.",
                    cause=error.cause,
                )
        return client

    async def _go_on(self, client: ZmqClient) -> None:
        """Send what lives, the request first that needs the fewest tokens more."""
        assert self.since is not None
        waiting = sorted(self._requests, key=_num_missing)
        seconds = time.monotonic() - self.since
        self.since = None
        logger.warning("The engine runs again after %.2f s; %d requests go on.", seconds, len(waiting))
        await self._send(client, waiting)

    async def _send(self, client: ZmqClient, waiting: Iterable[RequestState]) -> None:
        for state in waiting:
            if self._requests.find(state.request_id) is not state:
                continue  # it has been aborted meanwhile, and its id may be in use again
            try:
                await client.add(state.resumed())
            except EngineDeadError:
                return  # the next pause has begun
            except RequestError as error:
                self._streams.fail(state.request_id, error)


def _num_missing(state: RequestState) -> int:
    """Tokens that a request may still get."""
    most = state.requests[0].params.max_tokens or 0
    return sum(most - given for given in state.num_given().values())
