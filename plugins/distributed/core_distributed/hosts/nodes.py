"""The other nodes of an engine, as the first one sees them.

Owns: who has come, signs of life, and questions about their ranks. Never does: start a rank, or move plans.
Called by: the executor of the first node.

A thread has the socket. It judges silence only after it has read all that has come, and grants nodes the time for which it
did not run itself, because native code or a stopped process may keep it from running.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec
import zmq

from core.api.config import EngineConfig
from core.api.errors import UNREADABLE, CoreError
from core.version import __version__
from core_distributed.arguments import RanksArguments
from core_distributed.hosts.likeness import difference, shape_of
from core_distributed.hosts.meeting import Meeting, silence_of
from core_distributed.hosts.messages import Answer, Begin, End, FromNode, Gone, Hello, Question, Refused, ToNode
from core_distributed.hosts.sockets import Sockets, joined, pieces

logger = logging.getLogger(__name__)

REMIND_S: Final = 30.0
ANSWER_S: Final = 1.0
"""Seconds that nodes have to answer a question."""
_DECODER: Final = msgspec.msgpack.Decoder(FromNode)


class Nodes:
    """The other nodes of one engine. The executor's children own it.

    config: of this node.

    on_death: called in the thread with a clause when a node, or one of its ranks, is gone; set before `begin`.
    """

    on_death: Callable[[str], None]

    def __init__(self, config: EngineConfig, arguments: RanksArguments) -> None:
        self._arguments = arguments
        self._config = config
        self._silence_s = silence_of(arguments.timeout_seconds)
        self._hellos: dict[int, Hello] = {}
        self._configs: dict[int, EngineConfig] = {}
        self._identities: dict[int, bytes] = {}
        self._seen: dict[int, float] = {}
        self._has_begun = self._is_ending = False
        self._reported = ""
        self._changed = threading.Condition()
        self._outbox: list[tuple[int, ToNode]] = []
        self._asked = 0
        self._answers: dict[int, Answer] = {}
        self._sockets = Sockets(arguments.key_file)
        try:
            self._socket = self._sockets.listen(zmq.ROUTER, arguments.address, arguments.port)
        except BaseException:
            self._sockets.close()
            raise
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="nodes-watch", daemon=True)
        self._thread.start()

    def wait(self) -> Meeting:
        """Wait until all nodes have come. Raises CoreError."""
        count = self._arguments.nodes - 1
        begin = time.monotonic()
        end, remind = begin + self._arguments.join_seconds, begin + 1.0
        with self._changed:
            while len(self._hellos) < count:
                if self._reported:
                    raise CoreError(f"{self._reported}.")
                now = time.monotonic()
                absent = ", ".join(str(node) for node in range(1, count + 1) if node not in self._hellos)
                where = f"{self._arguments.address}:{self._arguments.port}"
                if now >= end:
                    raise CoreError(
                        f"Of {count + 1} nodes, these have not come to {where} within {self._arguments.join_seconds:g} s: "
                        f"{absent}. Start `core serve MODEL --node-rank N` there with the same --nnodes, --master-addr, "
                        "--master-port and --engine-key-file; `core nodes check` tests the network."
                    )
                if now >= remind:
                    logger.warning("Waiting at %s for nodes: %s", where, absent)
                    remind = now + REMIND_S
                self._changed.wait(min(end, remind) - now)
            addresses = [self._arguments.address, *(self._hellos[node].address for node in range(1, count + 1))]
        return Meeting(addresses, self._arguments.port, os.urandom(8), self._arguments.key_file)

    def config(self, node: int) -> EngineConfig:
        """Return the configuration of a node's own arguments."""
        return self._configs[node] if node else self._config

    def begin(self, meeting: Meeting, slot_bytes: int) -> None:
        """Have all nodes start their ranks."""
        with self._changed:
            self._has_begun = True
            now = time.monotonic()
            self._seen = dict.fromkeys(self._identities, now)
            reported = self._reported
        self._tell(Begin(meeting, slot_bytes))
        if reported:
            self.on_death(reported)

    def report(self, how: str) -> None:
        """Note the end of a node that whoever started it has noticed. how: a clause that begins with its name."""
        with self._changed:
            self._reported = self._reported or how
            has_begun = self._has_begun
            self._changed.notify_all()
        if has_begun and not self._is_ending:
            self.on_death(how)

    def ask(self, *, stacks: bool = False) -> dict[int, Answer]:
        """Return what nodes say about their ranks, of those that answer in time. stacks: see `Question`."""
        with self._changed:
            self._asked += 1
            self._answers = {}
        self._tell(Question(self._asked, stacks))
        end = time.monotonic() + ANSWER_S
        with self._changed:
            while len(self._answers) < len(self._identities) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return dict(self._answers)

    def where(self, node: int) -> str:
        """Return a node's name and address, for people; its number alone before it has come."""
        hello = self._hellos.get(node)
        return f"Node {node}" if hello is None else f"Node {node} ({hello.name}, {hello.address})"

    def end(self) -> None:
        """End the ranks of all nodes and stop watching. Does nothing when called again."""
        if self._is_ending:
            return
        self._tell(End())
        self._is_ending = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        self._sockets.close(ANSWER_S)
        os.close(self._bell)

    def _tell(self, message: ToNode) -> None:
        """Send a message to all nodes."""
        with self._changed:
            self._outbox += [(node, message) for node in self._identities]
        os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell, select.POLLIN)
        interval = self._silence_s / 4
        before = time.monotonic()
        while not (self._is_ending and not self._outbox):
            if dict(poller.poll(int(interval * 1000))).get(self._bell):
                os.eventfd_read(self._bell)
            while True:
                try:
                    frames = self._socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._receive(frames[0], frames[1:])
            now = time.monotonic()
            lost = max(now - before - 2 * interval, 0.0)
            before = now
            self._judge(now, lost)
            self._send()

    def _send(self) -> None:
        with self._changed:
            outbox, self._outbox = self._outbox, []
        for node, message in outbox:
            self._send_to(self._identities[node], message)

    def _send_to(self, identity: bytes, message: ToNode) -> None:
        try:
            self._socket.send_multipart([identity, *pieces(msgspec.msgpack.encode(message))], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            logger.warning("A message to a node cannot be sent: %s", error)

    def _judge(self, now: float, lost: float) -> None:
        """Report a node that is silent. lost: seconds for which this thread did not run."""
        for node in self._seen:
            self._seen[node] += lost
            if self._has_begun and not self._is_ending and now - self._seen[node] > self._silence_s:
                self._seen[node] = now
                self.on_death(f"{self.where(node)} gave no sign of life for {self._silence_s:g} s")

    def _receive(self, identity: bytes, frames: list[bytes]) -> None:
        try:
            message = _DECODER.decode(joined(frames))
        except UNREADABLE as error:
            logger.warning("A message of a node cannot be read: %s", error)
            return
        if isinstance(message, Hello):
            self._greet(identity, message)
            return
        node = next((node for node, known in self._identities.items() if known == identity), None)
        if node is None:
            return
        self._seen[node] = time.monotonic()
        if isinstance(message, Gone) and self._has_begun:
            self.on_death(message.how)
        elif isinstance(message, Answer):
            with self._changed:
                if message.number == self._asked:
                    self._answers[node] = message
                self._changed.notify_all()

    def _greet(self, identity: bytes, hello: Hello) -> None:
        """Take a node in, or turn it away."""
        why = self._objection(hello)
        if why:
            logger.warning("%s of %s is turned away: %s", f"Node {hello.number}", hello.name, why)
            self._send_to(identity, Refused(why))
            return
        known = self._hellos.get(hello.number)
        if self._has_begun:
            if known is not None and known.name == hello.name and self._identities.get(hello.number) != identity:
                self.on_death(f"{self.where(hello.number)} lost the connection to this engine")
            return
        silent = time.monotonic() - self._seen.get(hello.number, 0.0) > self._silence_s
        if known is not None and known.name != hello.name and not silent:
            return  # the same command started anew takes over soon, a second one when the first is gone
        if known is None:
            logger.info("Node %d has come: %s, %s", hello.number, hello.name, hello.address)
        with self._changed:
            self._hellos[hello.number] = hello
            self._identities[hello.number] = identity
            self._seen[hello.number] = time.monotonic()
            self._changed.notify_all()

    def _objection(self, hello: Hello) -> str:
        """Return why a node cannot take part, as a sentence; empty if it can."""
        if hello.version != __version__:
            return f"Its version is {hello.version}, that of node 0 is {__version__}."
        shape = shape_of(self._arguments)
        if hello.shape != shape:
            return f"Its ranks are {hello.shape}, those of node 0 {shape}."
        if not 0 < hello.number < self._arguments.nodes:
            return f"--node-rank {hello.number} is not among --nnodes {self._arguments.nodes}."
        try:
            config = msgspec.msgpack.decode(hello.config, type=EngineConfig)
        except UNREADABLE as error:
            return f"Its configuration cannot be read: {error}."
        found = difference(self._config, config)
        if not found:
            self._configs[hello.number] = config
        return found
