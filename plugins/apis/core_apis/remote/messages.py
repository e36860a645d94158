"""The messages between an API server and its engine's command, besides those of any client and engine.

Owns: these messages and the frames that carry them. Never does: act on them, or use pickle. Called by: both ends.

The engine's command connects and sends `Hello`; the API server answers `Welcome`, or `Refused` and nothing more. From
then on the command sends engine events, and the API server `Open`s channels to the engine. A channel carries the messages
of one client of the engine (`core.api.messages`) unchanged. Both send `Alive` all the time, and `Bye` when they end.

A message has a kind and a payload. The kind is `HELLO` with the version of the protocol for the first one each way,
`TALK` for one of these Structs, or the number of a channel.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from core.api.config import EngineConfig
from core.engine.hello import GREETING
from core_apis.processes.api_messages import Alive, EngineAt, EngineDied, EngineGone, Explained

HELLO = GREETING
TALK = b"talk"
_CHANNEL = b"channel "

PULSE_S = 1.0
"""Seconds from one `Alive` to the next."""
SILENCE_S = 10.0
"""Seconds of silence after which the other end counts as lost."""
STOPPED_S = 3.0
"""Seconds between two pulses after which this process itself was held up, so that it cannot tell the other's silence."""
SILENCE = f"it has said nothing for {SILENCE_S:g} s"


class Hello(msgspec.Struct, frozen=True):
    """The introduction of an engine's command.

    engine:      the configuration of its engine.
    arguments:   values of the arguments that affect an engine.
    tokenizer:   digest of its tokenizer's files.
    weights:     digest of its weights' files.
    numerics:    digest of everything else that results depend on; None: known only once the engine runs.
    byteorder:   of its machine, as `sys.byteorder`.
    who:         the process, for people.
    explained:   its configuration as plain values.
    rank:        of the engine in its group. group_size: engines of that group.
    """

    engine: EngineConfig
    arguments: dict[str, Any]
    tokenizer: str
    weights: str
    numerics: str | None
    byteorder: str
    who: str
    explained: dict[str, Any]
    rank: int = 0
    group_size: int = 1


class Welcome(msgspec.Struct, tag="welcome"):
    """The API server accepts the engine."""


class Refused(msgspec.Struct, tag="refused"):
    """The API server refuses the engine. is_busy: it may accept later, when it needs another one."""

    sentence: str
    is_busy: bool


class Open(msgspec.Struct, tag="open"):
    """A client of the engine begins. now: the API server's monotonic seconds."""

    channel: int
    now: float


class Opened(msgspec.Struct, tag="opened"):
    """The answer to `Open`. asked: the `now` of `Open`. now: the engine's monotonic seconds."""

    channel: int
    asked: float
    now: float


class Close(msgspec.Struct, tag="close"):
    """The client of a channel has left."""

    channel: int


class Leaving(msgspec.Struct, tag="leaving"):
    """The engine is about to end, once its requests have: the API server may have them go on elsewhere."""


class Bye(msgspec.Struct, tag="bye"):
    """The sender ends, or its engine has ended for good."""

    sentence: str


class Pulse:
    """The rhythm in which one end looks after the other."""

    def __init__(self) -> None:
        self._latest = time.monotonic()

    async def was_late(self) -> bool:
        """Wait for the next pulse; return whether this process was held up, so that the other's silence tells nothing."""
        await asyncio.sleep(PULSE_S)
        before, self._latest = self._latest, time.monotonic()
        return self._latest - before > STOPPED_S


ToApiServer = EngineAt | EngineDied | EngineGone | Opened | Alive | Leaving | Bye
Answer = Welcome | Refused
ToEngine = Open | Close | Explained | Alive | Bye


def channel_kind(channel: int) -> bytes:
    """Return the kind of a channel's messages."""
    return _CHANNEL + b"%d" % channel


def channel_of(kind: bytes) -> int | None:
    """Return the channel number in such a kind; None if it is another kind."""
    digits = kind.removeprefix(_CHANNEL)
    if digits == kind or not digits.isdigit() or len(digits) > 18:
        return None
    return int(digits)
