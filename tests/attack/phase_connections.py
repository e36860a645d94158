"""Connections that do nothing, do it slowly, or end at the wrong moment; and what is left of them afterwards."""

import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from tests.attack.arena import Arena
from tests.attack.leaving import idle, leave_in_body, leave_in_stream
from tests.attack.make import completion
from tests.attack.probe import open_stream
from tests.attack.results import Clock, Phase
from tests.attack.row import Row
from tests.attack.send import Target, head, send
from tests.attack.server import HEALTH, Server

SILENT, DESCRIPTORS = 200, 128
DRIPPING = 20
HALF_CLOSED = 40
LEAVERS = 400
DISCONNECTS = 2000
TOGETHER = 16
READ_LIMIT_S = 5.0
"""The server's --request-read-timeout and --keep-alive-timeout in `ARGUMENTS`."""
PATIENCE_S = 3 * READ_LIMIT_S
GROWTH_MB = 60.0
POST = Row("completion", "/v1/completions")


def run(arena: Arena, phase: Phase, seconds: float) -> None:
    """All of it, on one server; the silent sockets on one with few descriptors."""
    clock = Clock(seconds)
    with arena.server(shell=f'ulimit -n {DESCRIPTORS}; exec "$@"') as server:
        silent(phase, server)
        arena.say("connections", "silent sockets done")
    with arena.server() as server:
        target = server.target
        arena.check_tokens(phase, target, "before")
        with ThreadPoolExecutor(TOGETHER) as pool:  # what ordinary use takes of memory
            list(pool.map(lambda number: _stay(target, f"Warm {number}: " + "word " * 200), range(64)))
        before, lines = server.memory(), len(server.log().splitlines())
        dripping(phase, target)
        half_closed(phase, target)
        arena.say("connections", "slow and half-closed ones done")
        leave(phase, target, "in the middle of a body", LEAVERS, clock.left / 4, leave_in_body)
        count = leave(phase, target, "in the middle of a stream", DISCONNECTS, clock.left * 0.8, leave_in_stream)
        arena.say("connections", f"{count} disconnects of streams done")
        idle(phase, target)
        grown = {name: value - before[name] for name, value in server.memory().items()}
        for name, megabytes in grown.items():
            phase.at_most(f"growth of the {name}'s memory", megabytes, GROWTH_MB, "MB", f"{before[name]:.0f} MB before")
        log = "\n".join(server.log().splitlines()[lines:])
        attacks = 2 * DRIPPING + HALF_CLOSED + LEAVERS + count
        phase.at_most("lines in the log", len(log.splitlines()), attacks / 10, "lines", f"{attacks} connections")
        phase.check("tracebacks in the log", "Traceback" not in log, len(re.findall("Traceback", log)), 0)
        arena.check_tokens(phase, target)


def silent(phase: Phase, server: Server) -> None:
    """More sockets than the server has descriptors, none of which says a word."""
    with ExitStack() as stack:
        for _ in range(SILENT):
            with suppress(OSError):
                stack.enter_context(server.target.connect(2.0))
        begin = time.monotonic()
        answer = send(server.target, HEALTH, PATIENCE_S)
        while answer.status != 200 and time.monotonic() - begin < PATIENCE_S:
            time.sleep(0.2)
            answer = send(server.target, HEALTH, PATIENCE_S)
        waited = time.monotonic() - begin
        name = f"/health beside {SILENT} silent sockets with {DESCRIPTORS} descriptors"
        phase.check(name, answer.status == 200, f"{answer.outcome} after {waited:.1f} s", f"200 in {PATIENCE_S:g} s")
    again = send(server.target, HEALTH, PATIENCE_S)
    phase.check("/health when they have gone", again.status == 200, again.outcome, 200)
    words = server.log()
    phase.check("no traceback about descriptors", "Traceback" not in words, words.count("Traceback"), 0)


def dripping(phase: Phase, target: Target) -> None:
    """Requests that come byte by byte and would take minutes: the server ends them."""
    body = completion(prompt="word " * 400)
    start = head(target, POST, body)
    whole, begun = start + body, {"headers": 40, "bodies": len(start) + 2}
    begin = time.monotonic()
    with ExitStack() as stack:
        slow: dict[str, list[socket.socket]] = {}
        for what, at in begun.items():
            slow[what] = [stack.enter_context(target.connect(2.0)) for _ in range(DRIPPING)]
            for connection in slow[what]:
                connection.sendall(whole[:at])
        step = 0
        while any(slow.values()) and time.monotonic() - begin < PATIENCE_S:
            for what, at in begun.items():
                byte = whole[at + step : at + step + 1]
                slow[what] = [connection for connection in slow[what] if _drip(connection, byte)]
            step += 1
            time.sleep(0.25)
        waited = time.monotonic() - begin
        for what, left in slow.items():
            name = f"slow {what} are ended by --request-read-timeout {READ_LIMIT_S:g}"
            phase.check(name, not left, f"{len(left)} open after {waited:.1f} s", f"0 after {PATIENCE_S:g} s")
    answer = send(target, HEALTH)
    phase.check("/health after slow requests", answer.status == 200, answer.outcome, 200)


def _drip(connection: socket.socket, byte: bytes) -> bool:
    """Send one byte more; False when the server has answered or hung up."""
    try:
        connection.sendall(byte)
        connection.settimeout(0.001)
        connection.recv(1024)
    except TimeoutError:
        return True
    except OSError:
        return False
    return False


def half_closed(phase: Phase, target: Target) -> None:
    """Clients that say that they will send no more, and still read: an answer, or a closed connection."""
    body = completion()
    statuses = []
    for _ in range(HALF_CLOSED):
        try:
            with target.connect(10.0) as connection:
                connection.sendall(head(target, POST, body) + body)
                connection.shutdown(socket.SHUT_WR)
                statuses.append(connection.recv(65536)[:12])
        except OSError as error:
            statuses.append(type(error).__name__.encode())
    bad = [status for status in statuses if status not in (b"HTTP/1.1 200", b"", b"ConnectionResetError")]
    phase.check("half-closed connections are answered or closed", not bad, bad[:3] or "all", "all")


def leave(
    phase: Phase, target: Target, where: str, count: int, seconds: float, one: Callable[[Target, int], bool]
) -> int:
    """Connect and leave so often, as far as there is time; returns how often."""
    clock = Clock(seconds)
    with ThreadPoolExecutor(TOGETHER) as pool:
        left = list(pool.map(lambda number: bool(clock.left) and one(target, number), range(count)))
    done = sum(left)
    if done < count:
        phase.notes.append(f"{done} of {count} clients left {where} before the time was over.")
    answer = send(target, HEALTH)
    phase.check(f"/health after {done} clients left {where}", done > 0 and answer.status == 200, answer.outcome, 200)
    return done


def _stay(target: Target, prompt: str) -> None:
    with suppress(OSError), open_stream(target, 20, prompt) as connection:
        while connection.recv(65536):
            pass
