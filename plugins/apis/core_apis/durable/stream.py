"""One streamed answer that outlives its connection.

Owns: `DurableStream`: its task, its events, and its stored form. Never does: write events (`streamed_answers` does), or
know other streams. Called by: `DurableStreams`.

An event is shown to readers only after its tokens have been written to the journal, so no later server can contradict
it.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from core.api.errors import CoreError, EngineDeadError
from core_apis.answers.event_stream import DONE
from core_apis.callers.tenant import Tenant
from core_apis.durable.event_ids import LARGEST, EventId, with_ids
from core_apis.durable.patient_log import PatientLog
from core_apis.durable.recorder import RequestRecorder
from core_apis.durable.sureness import Sureness, first_after
from core_apis.errors import error_event
from core_apis.journal.journal import EntryLog, Journal, now
from core_apis.journal.records import Ended
from core_apis.responses.event_log import EventLog

logger = logging.getLogger("core_apis")

Events = AsyncGenerator[bytes, None]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


class DurableStream:
    """A stream whose events are kept for later readers.

    log:       its records in the journal.
    digest:    of its tenant in the journal.
    sure:      which events of earlier servers are the same now.
    is_broken: whether it could not continue: its only event says why.
    ended_at:  seconds since the epoch; None: it runs.
    packed:    its events, compressed, once it has ended.
    """

    def __init__(self, kind: str, answer_id: str, tenant: Tenant, digest: bytes, log: EntryLog) -> None:
        self.kind = kind
        self.id = answer_id
        self.tenant = tenant
        self.digest = digest
        self.log = log
        self.sure = Sureness()
        self.is_broken = False
        self.ended_at: float | None = None
        self.packed = b""
        self._events: EventLog | None = None
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def restored(cls, ended: Ended, tenant: Tenant, log: EntryLog) -> DurableStream:
        """Return a stream that ended in an earlier server."""
        stream = cls(ended.kind, ended.id, tenant, ended.tenant, log)
        stream.ended_at = ended.at
        stream.packed = ended.kept
        stream.sure = Sureness(LARGEST, is_final=True)
        return stream

    def start(
        self, journal: Journal, recorder: RequestRecorder, events: Events, patience_s: float, forget: Callable[[], None]
    ) -> None:
        """Run the stream, whether or not it has a reader.

        events:     blocks without ids.
        patience_s: seconds without a reader after which the stream ends.
        forget:     called when it ends for want of a reader.
        """

        def abandon() -> None:
            logger.info("The stream %s ends: nobody has read it for %g s.", self.id, patience_s)
            forget()
            self.suspend()

        log = self._events = PatientLog(patience_s, abandon)
        self._task = asyncio.ensure_future(self._pump(journal, recorder, events, log))
        self._task.add_done_callback(lambda task: self._stop(log))

    async def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        """Yield its events from number `start` to the last one."""
        log = self._events
        if log is None:
            kept = await asyncio.to_thread(self._unpacked)
            yield b"".join(kept[start:])
            return
        async with aclosing(log.follow(start)) as pieces:
            async for piece in pieces:
                yield piece

    async def after(self, last: EventId, epoch: int) -> int:
        """Return the number of the first event after the last one that a client has read. Raises RequestError (400,
        409).

        epoch: the journal's current epoch.
        """
        return 0 if self.is_broken else await first_after(last, self.id, epoch, self.sure)

    def suspend(self) -> None:
        """Stop without an end record: a later server continues."""
        if self._task is not None:
            self._task.cancel()

    async def stopped(self) -> None:
        """Wait until it has ended or stopped."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _pump(self, journal: Journal, recorder: RequestRecorder, events: Events, log: EventLog) -> None:
        try:
            async with aclosing(events):
                async for event in events:
                    await journal.written()
                    self._add(log, journal.epoch, event)
                    self.sure.note(recorder, len(log.events))
            last = DONE
        except EngineDeadError as error:
            log.append([error_event(error)])  # not the end of the stream: the next server continues it
            return
        except CoreError as error:
            last = error_event(error)
        except Exception as error:
            logger.exception("A stream failed.")
            last = error_event(error)
        await self._end(log, journal.epoch, last)

    def _stop(self, log: EventLog) -> None:
        """Close the event log: no further events come, whether the stream has ended or only stopped."""
        log.close()
        self.sure.settle()

    async def _end(self, log: EventLog, epoch: int, last: bytes) -> None:
        """Append the last event, and replace the stream's records by its stored form."""
        self._add(log, epoch, last)
        # Closed first: readers need not wait until the events are packed.
        log.close()
        self.packed = await asyncio.to_thread(_packed, log.events)
        self.ended_at = now()
        self.log.ended(Ended(self.kind, self.id, self.digest, self.ended_at, self.packed))
        self._events = None

    def _add(self, log: EventLog, epoch: int, event: bytes) -> None:
        log.append(with_ids(self.id, epoch, len(log.events), [event]))

    def _unpacked(self) -> list[bytes]:
        return _decode(zlib.decompress(self.packed))


def _packed(events: Sequence[bytes]) -> bytes:
    return zlib.compress(_encode(events), 1)
