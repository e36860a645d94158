"""The recovery between the death of an engine and the next engine, which continues all running requests.

Owns: `Recovery`: the next client, the check that its engine computes the same, sending all live requests to it, and
ending those that make engines die. Never does: decide whether there is a next engine (its source does), or read
messages of engines. Called by: `AsyncEngine`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Protocol

from core.api.errors import CoreError, EngineDeadError, RequestError
from core.api.messages import EngineReady
from core_frontend.api.outputs import RequestOutput
from core_frontend.denylist import Denylist
from core_frontend.output_processor import OutputProcessor, RequestState
from core_frontend.suspects import Suspects
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.restart_log import RestartLog
from core_supervision.revival import EngineSource

logger = logging.getLogger(__name__)

SAFE_STEPS = 4
"""Steps after which a request counts as progressing: more than an engine may have begun before it died."""

MOST_IN_VAIN = 3
"""Number of consecutive verdicts without any progress, after which deaths are attributed to the engine itself."""

LONGEST_TRIAL_S = 10.0
LOOK_S = 0.02

SAME = ("numerics", "max_model_len")
"""Fields of `EngineReady` that must be equal in the next engine; otherwise a text would continue with other tokens."""


class Patient(Protocol):
    """The owner of the engine that died."""

    def adopt(self, client: ZmqClient) -> None:
        """Use this client from now on."""
        ...

    def give_up(self, error: EngineDeadError) -> None:
        """Note that there will be no further engine."""
        ...


class Resumable(Protocol):
    """The requests of one front, with the readers of their outputs."""

    @property
    def states(self) -> OutputProcessor:
        """Return the requests."""
        ...

    @property
    def streams(self) -> Readers:
        """Return the readers."""
        ...


class Readers(Protocol):
    """The readers of outputs."""

    def deliver(self, outputs: Iterable[RequestOutput]) -> None:
        """Give outputs to their readers."""
        ...

    def fail(self, request_id: str, error: CoreError) -> None:
        """End one request with an error."""
        ...


class DeadClient(Protocol):
    """The client of the engine that died."""

    @property
    def ready(self) -> EngineReady:
        """Return the greeting of that engine."""
        ...

    def name_of(self, handle: int) -> str:
        """Return the id of the request with this handle, otherwise a text that is no such id."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class Recovery:
    """The recovery of one `AsyncEngine`.

    live:       all requests, and the readers of their last outputs or errors.
    log:        receives all events.
    killers:    the denylist, which receives requests that made engines die.
    num_drafts: maximum number of draft tokens in a step.
    """

    def __init__(
        self,
        source: EngineSource,
        patient: Patient,
        live: Resumable,
        log: RestartLog,
        killers: Denylist,
        num_drafts: int = 0,
    ) -> None:
        self._source = source
        self._patient = patient
        self._requests = live.states
        self._streams = live.streams
        self._log = log
        self._killers = killers
        self._suspects = Suspects()
        self._given: dict[str, dict[int, int]] = {}
        self._got_on = (num_drafts + 1) * SAFE_STEPS
        self._num_in_vain = 0
        self._num_completed = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self, dead: DeadClient, error: EngineDeadError) -> None:
        """Begin the recovery after an engine has died of `error`. dead: its client.

        Until the recovery is over, new requests must not be sent: it sends all requests that are live at its end.
        """
        self._log.died(error.cause, str(error))
        logger.error("%s\n%d requests wait for another engine.", error, len(self._requests))
        self._stop()
        self._tasks[0] = asyncio.create_task(self._run(dead, error))

    async def close(self) -> None:
        """End the recovery, if there is one, without another engine."""
        self._stop()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._source.close()

    def _stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _judge(self, dead: DeadClient, error: EngineDeadError) -> int:
        """End the request that makes engines die, if it is known now, and all that are equal to it.

        Return the number of deaths that this explains.
        """
        computed = dict.fromkeys(dead.name_of(handle) for handle in error.suspects or ())
        live = {state.request_id for state in self._requests}
        verdict = self._suspects.died(list(computed), live, self._has_got_on, error.cause)
        guilty = self._requests.find(verdict.name) if verdict is not None else None
        if verdict is None or guilty is None:
            return 0
        logger.error("Request %r ends: engines die when they compute it.", verdict.name)
        first = guilty.requests[0]
        self._killers.add(first, error.cause)
        doomed = [state.request_id for state in self._requests if self._killers.is_known(state.requests[0])]
        sentence = (
            f"The engine died again and again when it computed this request, alone at last (cause: {error.cause}); the "
            "server's log says more."
        )
        self._streams.deliver(self._requests.abort(doomed, "error", sentence))
        return verdict.num_deaths if self._others_got_on() else 0

    def _others_got_on(self) -> bool:
        """Whether engines can compute other requests, judged by the progress between two verdicts.

        An engine that dies of every request is broken, and must be given up eventually.
        """
        num_completed = self._requests.num_completed
        got_on = any(self._has_got_on(state.request_id) for state in self._requests)
        if got_on or num_completed > self._num_completed:
            self._num_in_vain = 0
        self._num_completed = num_completed
        self._num_in_vain += 1
        return self._num_in_vain <= MOST_IN_VAIN

    def _has_got_on(self, request_id: str) -> bool:
        """Whether each choice that still runs has received tokens of several steps from this engine."""
        state = self._requests.find(request_id)
        if state is None:
            return True
        before = self._given.get(request_id, {})
        given = state.num_given()
        return all(count - before.get(choice, 0) >= self._got_on for choice, count in given.items())

    async def _run(self, dead: DeadClient, error: EngineDeadError) -> None:
        try:
            num_explained = self._judge(dead, error)
            await dead.close()
            client = await self._next(dead.ready, error, num_explained)
            self._log.restarted(error.cause)
            self._patient.adopt(client)
            await self._go_on(client)
        except EngineDeadError as last:
            self._patient.give_up(last)
        except Exception as defect:
            logger.error("The engine could not be replaced.", exc_info=defect)
            sentence = f"{error}\nIt could not be replaced ({type(defect).__name__}: {defect})."
            self._patient.give_up(EngineDeadError(sentence, cause=error.cause))

    async def _next(self, before: EngineReady, error: EngineDeadError, num_explained: int) -> ZmqClient:
        """Return the next client. Raises EngineDeadError if there is none, or none that computes the same."""
        client = await self._source.next(error, num_explained)
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
        """Send the live requests: first suspects, without the others, then all, ordered by the number of tokens they
        still need.
        """
        self._given = {state.request_id: state.num_given() for state in self._requests}
        tried: set[str] = set()
        while group := self._suspects.next_trial():
            logger.warning("The engine may have died of one of %d requests; they run alone for a while.", len(group))
            await self._send(client, filter(None, map(self._requests.find, group)))
            tried.update(group)
            await self._until_safe(group)
            self._suspects.acquit()
        rest = [state for state in self._requests if state.request_id not in tried]
        rest.sort(key=num_missing)
        seconds = self._log.recovered()
        logger.warning("The engine runs again after %.2f s; %d requests go on.", seconds, len(self._requests))
        await self._send(client, rest)

    async def _send(self, client: ZmqClient, waiting: Iterable[RequestState]) -> None:
        for state in waiting:
            if self._requests.find(state.request_id) is not state:
                continue  # the request has been aborted meanwhile, and its id may be in use again
            try:
                await client.add(state.resumed())
            except EngineDeadError:
                return  # the next recovery has begun
            except RequestError as error:
                self._streams.fail(state.request_id, error)

    async def _until_safe(self, group: list[str]) -> None:
        """Wait until all of the group have progressed or ended, or have had enough time.

        A death of the engine cancels this.
        """
        end = time.monotonic() + LONGEST_TRIAL_S
        while not all(map(self._has_got_on, group)) and time.monotonic() < end:
            await asyncio.sleep(LOOK_S)


def num_missing(state: RequestState) -> int:
    """Return the number of tokens that a request may still receive."""
    most = state.requests[0].params.max_tokens or 0
    return sum(most - given for given in state.num_given().values())
