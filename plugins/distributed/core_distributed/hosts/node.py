"""Another node than the first: the ranks of this host, for an engine of the first one.

Owns: the connection to the engine, and the order in which ranks start and end. Never does: compute, or answer requests.
Called by: `core serve MODEL --node-rank N`.

The engine may die and start again, and the network may be cut: the ranks end, and the node waits for the next engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import select
import time
from collections.abc import Callable
from typing import Final

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from core.api.config import EngineConfig
from core.api.errors import UNREADABLE, CoreError, UserError
from core.version import __version__
from core_distributed.arguments import RanksArguments
from core_distributed.children import Children
from core_distributed.hosts.likeness import shape_of
from core_distributed.hosts.meeting import silence_of
from core_distributed.hosts.messages import Alive, Answer, Begin, End, FromNode, Gone, Hello, Question, Refused, ToNode
from core_distributed.hosts.sockets import Sockets, joined, own_address, pieces
from core_distributed.layout import Layout, layout_bytes
from core_supervision.link.anonymous_file import anonymous_file

logger = logging.getLogger(__name__)

HELLO_S: Final = 0.25
REMIND_S: Final = 30.0
_DECODER: Final = msgspec.msgpack.Decoder(ToNode)
_LOST: Final = int(zmq.EVENT_DISCONNECTED)


class NodeServer:
    """The ranks of this host. config: of this node's own arguments. number: of the node, from 1 on."""

    def __init__(self, config: EngineConfig, arguments: RanksArguments, number: int) -> None:
        self._arguments = arguments
        self._number = number
        self._layout = Layout(arguments.ranks, arguments.stages, arguments.nodes)
        self._silence_s = silence_of(arguments.timeout_seconds)
        self._config = msgspec.msgpack.encode(config)
        self._name = f"process {os.getpid()} of {platform.node() or 'a host without a name'}"
        self._where = f"{arguments.address}:{arguments.port}"
        self._is_over = False

    def run(self) -> None:
        """Serve engines until `stop`. Raises CoreError when none comes in time, or one turns this node away."""
        while not self._is_over:
            self.serve_one()

    def serve_one(self) -> None:
        """Serve one engine to its end, or until `stop`. Raises what `run` raises."""
        with contextlib.closing(_Connection(self._arguments, self._silence_s)) as connection:
            begin = self._await_work(connection)
            if begin is not None:
                self._compute(connection, begin)

    def stop(self) -> None:
        """Have `run` return soon; may be called in any thread."""
        self._is_over = True

    def _await_work(self, connection: _Connection) -> Begin | None:
        """Wait until an engine begins; None: this node is stopped."""
        limit = self._arguments.join_seconds
        begin = time.monotonic()
        remind = begin + 1.0
        while not self._is_over:
            now, trouble = time.monotonic(), ""
            try:
                connection.send(self._hello())
            except UserError as error:  # a name in a cluster may be known a little later
                trouble = f" {error}"
            if now - begin > limit:
                raise CoreError(f"No engine has come at {self._where} within {limit:g} s.{trouble}")
            if now > remind:
                logger.warning("Waiting for the engine at %s.%s", self._where, trouble)
                remind = now + REMIND_S
            for message in connection.wait(HELLO_S):
                if isinstance(message, Begin):
                    connection.is_lost = False  # only the present connection counts, not attempts before it
                    return message
                if isinstance(message, Refused):
                    raise CoreError(f"Node 0 turned this node away: {message.why}")
        return None

    def _hello(self) -> Hello:
        address = own_address(self._arguments.address, self._arguments.port)
        return Hello(self._number, __version__, self._name, address, self._config, shape_of(self._arguments))

    def _compute(self, connection: _Connection, begin: Begin) -> None:
        """Run the ranks until the engine is gone, or one of them."""
        memory = anonymous_file("core-ranks", layout_bytes(self._layout, begin.slot_bytes, self._number))
        bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        connection.watch(bell)
        try:
            meeting = msgspec.structs.replace(begin.meeting, key_file=self._arguments.key_file)
            children = Children(
                self._layout,
                memory,
                begin.slot_bytes,
                lambda: os.eventfd_write(bell, 1),
                self._number,
                meeting,
                2 * self._arguments.timeout_seconds,
            )
        finally:
            os.close(memory)
        logger.info("The engine at %s has begun; ranks: %s", meeting.addresses[0], ", ".join(children.names().values()))
        ended = False
        try:
            ended = self._serve(connection, children)
        finally:
            if not ended:
                connection.send(Gone(f"Node {self._number} ({self._name}) was stopped"))
            children.end()
            connection.unwatch(bell)
            os.close(bell)

    def _serve(self, connection: _Connection, children: Children) -> bool:
        """Give signs of life and answer questions until the end; returns whether it was that of the engine or of a rank."""
        while not self._is_over:
            connection.send(Alive())
            for message in connection.wait(self._silence_s / 4):
                if isinstance(message, End):
                    logger.info("The engine has ended.")
                    return True
                if isinstance(message, Question):
                    states = children.states(stacks=message.stacks)
                    connection.send(Answer(message.number, children.words(), states, children.names()))
            if children.death:
                logger.error("%s", children.death)
                connection.send(Gone(children.death))
                return True
            if connection.is_lost:
                logger.error("The engine is gone: the connection was lost.")
                return True
        return False


class _Connection:
    """The connection to one engine."""

    def __init__(self, arguments: RanksArguments, silence_s: float) -> None:
        self.is_lost = False
        self._sockets = Sockets(arguments.key_file)
        self._socket = self._sockets.connect(zmq.DEALER, arguments.address, arguments.port, silence_s)
        self._monitor = self._socket.get_monitor_socket(_LOST)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def watch(self, descriptor: int) -> None:
        """Let something else end a wait."""
        self._poller.register(descriptor, select.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""
        self._poller.unregister(descriptor)

    def send(self, message: FromNode) -> None:
        """Send a message if there is a connection."""
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart([*pieces(msgspec.msgpack.encode(message))], zmq.NOBLOCK)

    def wait(self, seconds: float) -> list[ToNode]:
        """Return the messages that have come, after this time at the latest."""
        self._poller.poll(int(seconds * 1000))
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())
            self.is_lost = self.is_lost or event["event"] == _LOST
        found: list[ToNode] = []
        while True:
            try:
                found.append(_DECODER.decode(joined(self._socket.recv_multipart(zmq.NOBLOCK))))
            except zmq.Again:
                return found
            except UNREADABLE as error:
                logger.warning("A message of node 0 cannot be read: %s", error)

    def close(self) -> None:
        """Close the connection; the last message is sent."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._sockets.close(0.5)


def serve_node(
    config: EngineConfig, number: int, announce: Callable[[str], None] = lambda text: print(text, flush=True)
) -> None:
    """Run this host's ranks until a signal ends it. Raises CoreError, see `NodeServer.run`."""
    arguments = msgspec.convert(config.plugins.arguments["executor.mp"], RanksArguments)
    announce(f"Node {number} of {arguments.nodes} for the engine at {arguments.address}:{arguments.port}")
    NodeServer(config, arguments, number).run()
