"""What the first node and the others say to each other besides what ranks exchange.

Owns: the form of these messages. Never does: send. Called by: `Nodes` and `NodeServer`.
"""

from __future__ import annotations

import msgspec

from core_distributed.hosts.meeting import Meeting


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A node that wants to compute. Sent until it is answered.

    number: of the node. version: of the engine; the other fields are read only where it is ours.
    name: process and host. address: of the host, on the route to the first one.
    config: `EngineConfig` of its own arguments, msgpack.
    shape: what the engine is divided into, as its own arguments say.
    """

    number: int
    version: str
    name: str
    address: str
    config: bytes
    shape: str


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The answer to a Hello once all nodes are there. The key file of the meeting is that of the receiver."""

    meeting: Meeting
    slot_bytes: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The other answer to a Hello. why: a sentence."""

    why: str


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A sign of life."""


class Gone(msgspec.Struct, frozen=True, tag=True):
    """A rank of a node has ended. how: a clause that begins with its name."""

    how: str


class Question(msgspec.Struct, frozen=True, tag=True):
    """number: rises by one with each. stacks: whether all ranks write their stacks to the log."""

    number: int
    stacks: bool = False


class Answer(msgspec.Struct, frozen=True, tag=True):
    """words: what ranks have said about failures. states: of each rank's process."""

    number: int
    words: list[str]
    states: dict[int, str]
    names: dict[int, str]


class End(msgspec.Struct, frozen=True, tag=True):
    """The engine ends as it should."""


FromNode = Hello | Alive | Gone | Answer
ToNode = Begin | Refused | Question | End
