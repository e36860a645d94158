"""A machine that lets others check it, and that checks others for them.

Owns: `answer`, what a machine tells of itself, and the attempt to reach another one. Never does: judge. Called by: `core nodes
answer`, and the check.

The sockets are those of API servers and engines, so what works here works there: the same port, key file and encryption.
"""

from __future__ import annotations

import asyncio
import fcntl
import platform
import socket
import struct
import sys
import time
from importlib.metadata import PackageNotFoundError, version

import msgspec

from core.api.errors import UNREADABLE
from core.kv.fingerprint import weights_digest
from core.version import __version__
from core_apis.remote.sockets import Link
from core_config.served.server_config import RemoteSettings

ASK = b"nodes"
NUM_BYTES = 1 << 20
CONNECT_S = 3.0
ANSWER_S = 6.0
TRY_S = 12.0
"""Seconds that a machine has for its attempts to reach others, which it makes at the same time."""
HUNG_UP = "the other end hung up: it has another key file (--engine-key-file), or has just ended"
SIOCGIFADDR = 0x8915


class Facts(msgspec.Struct, frozen=True):
    """What a machine tells of itself. weights: digest of the model's files; empty: it was given no model."""

    name: str
    core: str
    torch: str
    python: str
    byteorder: str
    weights: str


class Question(msgspec.Struct, frozen=True):
    """others: machines to be reached, as (host, port). padding: bytes that travel both ways."""

    others: list[tuple[str, int]] = []
    padding: bytes = b""


class Reached(msgspec.Struct, frozen=True):
    """One attempt to reach a machine.

    host, port: of that machine. problem: why it failed, a clause; empty: it did not.
    interface: of the route, with the own address. delay_ms: to the answer of a small message. mib_s: both ways together.
    """

    host: str
    port: int
    problem: str = ""
    interface: str = ""
    delay_ms: float = 0.0
    mib_s: float = 0.0
    facts: Facts | None = None


class Answer(msgspec.Struct, frozen=True):
    """The answer to a question."""

    facts: Facts
    reached: list[Reached] = []
    padding: bytes = b""


def facts_of(model: str | None) -> Facts:
    """Return what this machine tells of itself. model: path of a checkpoint."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    weights = "" if model is None else weights_digest(model)
    return Facts(platform.node(), __version__, torch, platform.python_version(), sys.byteorder, weights)


async def answer(settings: RemoteSettings, facts: Facts) -> None:
    """Answer questions until cancelled. settings: where to listen, as an API server. Raises UserError."""
    link = Link(settings, listens=True)
    answering: set[asyncio.Task[None]] = set()
    try:
        while True:
            identity, _, payload = await link.receive_from()
            task = asyncio.create_task(_answer_one(link, identity, payload, settings, facts))
            answering.add(task)
            task.add_done_callback(answering.discard)
    finally:
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        link.close()


async def _answer_one(link: Link, identity: bytes, payload: bytes, settings: RemoteSettings, facts: Facts) -> None:
    try:
        question = msgspec.msgpack.decode(payload, type=Question)
    except UNREADABLE as error:
        print(f"core nodes answer: a question cannot be read: {error}.", file=sys.stderr, flush=True)
        return
    reached = await asyncio.gather(*(reach(settings, host, port) for host, port in question.others))
    answered = Answer(facts, reached, question.padding)
    await link.send(ASK, msgspec.msgpack.encode(answered), identity)


async def reach(settings: RemoteSettings, host: str, port: int) -> Reached:
    """Try to reach a machine that answers. settings: whose key file is used."""
    try:
        async with asyncio.timeout(CONNECT_S):
            interface = await _connect(host, port)
    except TimeoutError:
        return Reached(
            host, port, f"no answer within {CONNECT_S:g} s: the network is cut, or a firewall drops the port"
        )
    except ConnectionRefusedError:
        return Reached(host, port, "nothing listens there: start `core nodes answer` with this address and port")
    except OSError as error:
        return Reached(host, port, f"{error.strerror or error}")
    try:
        async with asyncio.timeout(ANSWER_S):
            begin = time.monotonic()
            first = await ask(settings, host, port, Question())
            delay_s = time.monotonic() - begin
            begin = time.monotonic()
            await ask(settings, host, port, Question(padding=bytes(NUM_BYTES)))
            seconds = max(time.monotonic() - begin - delay_s, 1e-6)
    except TimeoutError:
        return Reached(host, port, f"connected by {interface}, but no answer within {ANSWER_S:g} s", interface)
    except LinkTrouble as trouble:
        return Reached(host, port, str(trouble), interface)
    rate = 2 * NUM_BYTES / seconds / (1 << 20)
    return Reached(host, port, "", interface, delay_s * 1000, rate, first.facts)


class LinkTrouble(Exception):
    """No connection was made; the text says why, as a clause."""


async def ask(settings: RemoteSettings, host: str, port: int, question: Question) -> Answer:
    """Ask a machine. Raises LinkTrouble; the caller limits the time."""
    link = Link(msgspec.structs.replace(settings, address=host, port=port), listens=False)
    receiving = asyncio.ensure_future(link.receive())
    troubling = asyncio.ensure_future(link.trouble())
    try:
        await link.send(ASK, msgspec.msgpack.encode(question))
        done, _ = await asyncio.wait({receiving, troubling}, return_when=asyncio.FIRST_COMPLETED)
        if receiving not in done:
            raise LinkTrouble(troubling.result() or HUNG_UP)
        return msgspec.msgpack.decode(receiving.result()[1], type=Answer)
    finally:
        for task in (receiving, troubling):
            task.cancel()
        await asyncio.gather(receiving, troubling, return_exceptions=True)
        link.close()


async def _connect(host: str, port: int) -> str:
    """Connect once, and return the interface and the own address of the route. Raises OSError."""
    _, writer = await asyncio.open_connection(host, port)
    own = writer.get_extra_info("sockname")[0]
    writer.close()
    return f"{_interface(own)} ({own})"


def _interface(address: str) -> str:
    """Return the name of the interface with an IPv4 address; `?` for another address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return "lo" if address.startswith("127.") else "?"
