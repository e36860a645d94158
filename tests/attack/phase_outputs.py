"""Outputs that take nothing any more: full disks under the log, closed descriptors, a reader that stops; small stacks."""

import fcntl
import os
from contextlib import suppress
from functools import partial

from tests.attack.arena import Arena
from tests.attack.leaving import leave_in_body
from tests.attack.make import completion
from tests.attack.results import Clock, Phase
from tests.attack.row import Answer, Row
from tests.attack.send import send
from tests.attack.server import HEALTH, Server

OUTPUTS = {
    "standard output and error on a full disk": 'exec "$@" >/dev/full 2>&1',
    "standard output and error closed": 'exec "$@" >&- 2>&-',
    "standard output closed": 'exec "$@" >&-',
    "standard error closed": 'exec "$@" 2>&-',
}
PIPE_BYTES = 16_384
PIPE_REQUESTS, PIPE_ENOUGH = 400, 5


def run(arena: Arena, phase: Phase, seconds: float) -> None:
    """All kinds, each on a server of its own, as far as there is time."""
    steps = {name: partial(output, arena, phase, name, shell) for name, shell in OUTPUTS.items()}
    steps |= {
        "a stalled pipe": partial(stalled_pipe, arena, phase),
        "a small stack": partial(small_stack, arena, phase),
    }
    arena.each(phase, steps, Clock(seconds))


def output(arena: Arena, phase: Phase, name: str, shell: str) -> None:
    """A server whose outputs lead nowhere starts, serves, and ends in order."""
    with arena.server(shell=shell) as server:
        for number in range(10):
            leave_in_body(server.target, number)  # what it may have something to say about
        arena.check_tokens(phase, server.target, f"with {name}")
        code = server.end()
        phase.check(f"the end with {name}", code == 0, code, 0)


def stalled_pipe(arena: Arena, phase: Phase) -> None:
    """Whoever reads the log stops reading, then goes away."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    row = Row("refused", "/v1/completions", completion(temperature=-1))
    try:
        with arena.server(log=writer, disable_uvicorn_access_log=None, enable_log_requests=True) as server:
            target = server.target
            os.close(writer)
            bad: list[Answer] = []
            for _ in range(PIPE_REQUESTS):
                answer = send(target, row, 4.0)
                bad += [answer] if answer.status != 400 else []
                if len(bad) == PIPE_ENOUGH:
                    break
            name = f"{PIPE_REQUESTS} requests while nobody reads the log"
            phase.check(name, not bad, f"{len(bad)} without their answer", 0, bad[0].note if bad else "")
            arena.check_tokens(phase, target, "while nobody reads the log")
            os.close(reader)
            reader = -1
            answer = send(target, HEALTH, 5.0)
            phase.check("/health when the log's reader is gone", answer.status == 200, answer.outcome, 200)
            arena.check_tokens(phase, target, "when the log's reader is gone")
            code = server.end()
            phase.check("the end when the log's reader is gone", code == 0, code, 0)
    finally:
        if reader >= 0:
            os.close(reader)


def small_stack(arena: Arena, phase: Phase) -> None:
    """Threads with 256 KB of stack: served, or refused with a sentence."""
    server = Server(arena.home, shell='ulimit -s 256; exec "$@"')
    try:
        with suppress(RuntimeError):
            arena.check_tokens(phase, server.wait(), "with a small stack")
        code = server.process.poll()
        phase.check("no crash with a small stack", code in (None, 1, 2), code, "running, 1 or 2")
    finally:
        server.kill()
