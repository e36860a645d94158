"""Signals at the wrong moments: in the start, under load, to the engine alone."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial

import psutil

from tests.attack.arena import Arena
from tests.attack.make import completion
from tests.attack.probe import open_stream
from tests.attack.results import Clock, Phase
from tests.attack.row import Row
from tests.attack.send import send
from tests.attack.server import END_LIMIT_S, HEALTH, Server

STARTS = 24
FIRST_MOMENT_S, EARLY_MOMENT_S, LAST_MOMENT_S = 0.3, 1.2, 3.5
STREAMS = 8
STALL_S, UNHEALTHY_LIMIT_S = 5, 15.0
TIMEOUT_S = 1.0
TIMEOUT_LIMIT_S = 8.0
ORDERLY = {signal.SIGTERM: (0, 143), signal.SIGINT: (0, 130), signal.SIGKILL: (-9,)}
"""Exit codes that say what happened; a process that the signal itself ended (-15) did not clean up."""


def run(arena: Arena, phase: Phase, seconds: float) -> None:
    """Signals to the engine and under load; then starts that are interrupted, as far as the time allows."""
    clock = Clock(seconds)
    steps = {
        "a stopped engine": partial(stopped_engine, arena, phase),
        "a killed engine": partial(killed_engine, arena, phase),
        "both killed": partial(killed_both, arena),
        **{f"{number.name} under load": partial(under_load, arena, phase, number) for number in ORDERLY},
    }
    arena.each(phase, steps, clock)
    starts = 0
    while starts < STARTS and (clock.left or starts < 3):
        number = list(ORDERLY)[starts % 3]
        last = EARLY_MOMENT_S if starts // 3 % 2 else LAST_MOMENT_S
        interrupted_start(arena, phase, number, arena.random.uniform(FIRST_MOMENT_S, last))
        starts += 1
        arena.say("signals", f"{starts} starts interrupted", often=True)
    with arena.server() as server:
        own = server.run_directories()
        phase.check("directories that killed servers left are gone after the next start", len(own) <= 1, own, "its own")
        arena.check_tokens(phase, server.target)


def interrupted_start(arena: Arena, phase: Phase, number: signal.Signals, after_s: float) -> None:
    """One signal, so many seconds after the process began."""
    server = Server(arena.home)
    time.sleep(after_s)
    _end(phase, server, number, f"{number.name} {after_s:.2f} s after the start")


def under_load(arena: Arena, phase: Phase, number: signal.Signals) -> None:
    """One signal while streams run."""
    with arena.server() as server, ExitStack() as stack:
        for index in range(STREAMS):
            connection = stack.enter_context(open_stream(server.target, 1500, f"Stream {index}"))
            connection.recv(4096)
        time.sleep(arena.random.uniform(0.0, 0.5))
        _end(phase, server, number, f"{number.name} while {STREAMS} streams run")


def _end(phase: Phase, server: Server, number: signal.Signals, what: str) -> None:
    begin = time.monotonic()
    try:
        with suppress(ProcessLookupError):
            server.process.send_signal(number)
        with suppress(Exception):
            server.process.wait(END_LIMIT_S)
        code, seconds = server.process.poll(), time.monotonic() - begin
        wanted = ORDERLY[number]
        problems = [] if code in wanted else [f"the exit code is {code}"]
        orphans = server.wait_for_orphans()
        problems += [f"{len(orphans)} processes are left"] if orphans else []
        problems += ["a traceback in the log"] if "Traceback" in server.log() else []
        left = server.left_behind() if number != signal.SIGKILL else []
        problems += [f"{', '.join(left)} left behind"] if left else []
        value = f"{code} after {seconds:.1f} s"
        phase.check(what, not problems, value, f"{' or '.join(map(str, wanted))}, nothing left", "; ".join(problems))
    finally:
        server.kill()


def stopped_engine(arena: Arena, phase: Phase) -> None:
    """An engine process that does not move: the server says so, deadlines hold, and it heals."""
    with arena.server(engine_stall_timeout=STALL_S) as server, ThreadPoolExecutor(1) as pool:
        target, engine = server.target, server.engine
        arena.check_tokens(phase, target, "before the engine stops")
        engine.suspend()
        try:
            body = completion(timeout=TIMEOUT_S, max_tokens=500)
            asked = pool.submit(send, target, Row("timed", "/v1/completions", body), TIMEOUT_LIMIT_S)
            begin = time.monotonic()
            status = 200
            while status == 200 and time.monotonic() - begin < UNHEALTHY_LIMIT_S:
                status = send(target, HEALTH, 5.0).status
                time.sleep(0.1)
            waited = time.monotonic() - begin
            wanted = f"503 in {UNHEALTHY_LIMIT_S:g} s"
            phase.check("/health of a stopped engine", status == 503, f"{status} after {waited:.1f} s", wanted)
            answer = asked.result()
            what = f"a request with timeout {TIMEOUT_S:g} to a stopped engine"
            value = f"{answer.outcome} after {answer.seconds:.1f} s"
            phase.check(what, answer.status in (408, 503), value, f"408 or 503 in {TIMEOUT_LIMIT_S:g} s")
        finally:
            with suppress(psutil.Error):
                engine.resume()
        if server.process.poll() is None:
            deadline = time.monotonic() + 10.0
            while (again := send(target, HEALTH, 5.0).status) != 200 and time.monotonic() < deadline:
                time.sleep(0.1)
            phase.check("/health when the engine goes on", again == 200, again, 200)
            arena.check_tokens(phase, target, "when the engine goes on")


def killed_both(arena: Arena) -> None:
    """Server and engine killed at once, so that neither can clean up: the next start does."""
    with arena.server() as server:
        engine = server.engine
        server.process.kill()
        engine.kill()
        server.process.wait(10.0)


def killed_engine(arena: Arena, phase: Phase) -> None:
    """An engine process that is killed: a stream goes on with another one. Where none may be started, clients are told, the
    server ends with 1 and leaves nothing."""
    with arena.server() as server:
        rest = killed_amid(server)
        whole = b"[DONE]" in rest and b'"error"' not in rest
        phase.check(
            "a stream goes on when its engine was killed", whole, rest[-120:].decode(errors="replace"), "[DONE]"
        )
        arena.check_tokens(phase, server.target, "after the engine was killed")
    with arena.server(engine_restarts=0) as server:
        rest = killed_amid(server)
        phase.check(
            "a stream learns of a killed engine", b'"error"' in rest, rest[-120:].decode(errors="replace"), "an error"
        )
        with suppress(Exception):
            server.process.wait(15.0)
        code = server.process.poll()
        phase.check("the server after its engine was killed", code == 1, code, 1)
        left = [*server.left_behind(), *server.wait_for_orphans()]
        phase.check("nothing is left after its engine was killed", not left, left, "nothing")


def killed_amid(server: Server) -> bytes:
    """What a stream gets after its engine was killed."""
    rest = b""
    with open_stream(server.target, 400) as connection:
        connection.recv(4096)
        server.engine.kill()
        with suppress(OSError):
            connection.settimeout(30.0)
            while piece := connection.recv(65536):
                rest += piece
                if b"[DONE]" in rest:
                    break
    return rest
