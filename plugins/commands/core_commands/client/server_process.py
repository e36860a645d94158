"""A server that a command starts for itself, and ends with itself.

Owns: the process, a free port for it, and the wait until it answers. Never does: send it a request that counts. Called by:
`core tune`, `core diff --right-cmd`, `core bench sweep`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from core.api.errors import CoreError, UserError
from core.processes import ending
from core_commands.client.endpoint import EndpointError, whole
from core_commands.client.http_endpoint import HttpEndpoint

STOP_S: Final = 30.0
LOOK_S: Final = 0.1
LAST_BYTES: Final = 16 * 1024
"""Bytes at the end of a log in which the last words of a server are looked for."""


class ServerError(CoreError):
    """Raised when a server ends before it answers, or does not answer in time; the message says how."""


def free_port() -> int:
    """Return a port of this host that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    words: Sequence[str],
    output: IO[bytes] | None = None,
    *,
    flag: str = "",
    lifeline: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server inside the context, in a session of its own, where Ctrl-C does not reach it.

    output: file for what it prints; None: our own output.
    flag: the argument that names the command, for the UserError about one that cannot be started.
    lifeline: whether its standard input is a pipe, whose end tells it that this process is gone.
    environment: None: ours.
    """
    try:
        process = subprocess.Popen(
            list(words),
            stdin=subprocess.PIPE if lifeline else None,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"{flag} {words[0]}: cannot be started: {error.strerror}.".lstrip()) from None
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):  # ends what it has started, or the server itself when it hangs
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


async def until_ready(url: str, process: subprocess.Popen[bytes], seconds: float, log: Path | None = None) -> None:
    """Wait until a server answers /health with 200. Raises ServerError. log: of the server, for its last words."""
    endpoint = HttpEndpoint(url)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServerError(f"its {ending(process.returncode, last_words(log))}")
            try:
                async with endpoint.ask("GET", "/health") as answer:
                    await whole(answer)
                    if answer.status == 200:
                        return
            except EndpointError:
                pass  # it is not listening yet
            await asyncio.sleep(LOOK_S)
    finally:
        await endpoint.close()
    raise ServerError(f"it does not answer after {seconds:g} s")


def last_words(log: Path | None) -> bytes:
    """Return the end of a server's log; empty without one."""
    if log is None:
        return b""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        return file.read()
