"""What a front and its engine's command say to each other, besides what clients and engines say anyway.

Owns: these messages and the frames that carry them. Never does: act on them, or use pickle. Called by: both ends.

The engine's command connects and says `Hello`; the front answers `Welcome`, or `Refused` and no more. From then on one says
what becomes of its engine, the other `Open`s channels to it. A channel carries the messages of one client of the engine
(`core.api.messages`) as they are. Both say `Alive` all the time, and `Bye` when they end.

A message has a kind and a payload. The kind is `HELLO` with the version of the protocol for the first one each way, `TALK` for
one of these Structs, or the number of a channel.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.api.config import EngineConfig
from core.engine.greeting import GREETING
from core_apis.api_messages import Alive, EngineAt, EngineDied, EngineGone, Explained

HELLO = GREETING
TALK = b"talk"
_CHANNEL = b"channel "

PULSE_S = 1.0
"""From one `Alive` to the next."""
SILENCE_S = 60.0
"""Without a word, after which the other end counts as lost."""
SILENCE = f"it has said nothing for {SILENCE_S:g} s"


class Hello(msgspec.Struct, frozen=True):
    """An engine's command introduces itself.

    engine:      how its engine is configured.
    arguments:   values of the arguments that an engine goes by.
    tokenizer:   digest of its tokenizer's files.
    weights:     digest of its weights' files.
    numerics:    names what else results depend on; None: that is known when it runs.
    byteorder:   of its machine, as `sys.byteorder`.
    who:         the process, for people.
    explained:   its configuration as plain values.
    """

    engine: EngineConfig
    arguments: dict[str, Any]
    tokenizer: str
    weights: str
    numerics: str | None
    byteorder: str
    who: str
    explained: dict[str, Any]


class Welcome(msgspec.Struct, tag="welcome"):
    """The engine is the front's."""


class Refused(msgspec.Struct, tag="refused"):
    """It is not. is_busy: it may be later, when the front needs another one."""

    sentence: str
    is_busy: bool


class Open(msgspec.Struct, tag="open"):
    """A client of the engine begins. now: the front's monotonic seconds."""

    channel: int
    now: float


class Opened(msgspec.Struct, tag="opened"):
    """The answer. asked: the same seconds. now: those of the engine."""

    channel: int
    asked: float
    now: float


class Close(msgspec.Struct, tag="close"):
    """That client has left."""

    channel: int


class Bye(msgspec.Struct, tag="bye"):
    """The sender ends, or its engine has ended for good."""

    sentence: str


ToFront = EngineAt | EngineDied | EngineGone | Opened | Alive | Bye
Answer = Welcome | Refused
ToEngine = Open | Close | Explained | Alive | Bye


def channel_kind(channel: int) -> bytes:
    """The kind of a channel's messages."""
    return _CHANNEL + b"%d" % channel


def channel_of(kind: bytes) -> int | None:
    """The number in such a kind; None when it is none."""
    digits = kind.removeprefix(_CHANNEL)
    if digits == kind or not digits.isdigit() or len(digits) > 18:
        return None
    return int(digits)
