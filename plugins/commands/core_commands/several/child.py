"""The server of one model, a process of its own behind a unix socket.

Owns: its start, its sleep and its end. Never does: decide about any of them, or read a request. Called by:
`core_commands.several.keeper`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from core.api.errors import CoreError
from core.processes import child_environment, lifeline, python_command
from core_commands.client.endpoint import EndpointError, whole
from core_commands.client.http_endpoint import HttpEndpoint

LOOKS_S = 0.02
PATIENCE_S = 30.0
"""Seconds that background work of a model has to end before it is stopped where it is, to go on later."""
END_S = 20.0


class ChildError(CoreError):
    """The server of a model cannot start, sleep or wake up; the message says why."""


class ChildServer:
    """The server of one model.

    name: of the model. directory: for its socket and its arguments. number: of the model. key: of its operator, or None.
    endpoint: where it answers.
    """

    def __init__(self, name: str, values: Mapping[str, Any], directory: Path, number: int, key: str | None) -> None:
        self.name = name
        self._socket = directory / f"{number}.sock"
        self._file = directory / f"{number}.yaml"
        self._values = {**values, "uds": str(self._socket), "enable_sleep_mode": True}
        self._process: asyncio.subprocess.Process | None = None
        self._line = contextlib.ExitStack()
        self.endpoint = HttpEndpoint(f"unix:{self._socket}")
        self._operator = {} if key is None else {"Authorization": f"Bearer {key}"}

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it, and return when it answers. Raises ChildError when it ends before."""
        self._write()
        descriptor = self._line.enter_context(lifeline())
        self._process = await asyncio.create_subprocess_exec(
            *python_command("core_commands.several.member", "--config", str(self._file)),
            stdin=descriptor,
            start_new_session=True,  # Ctrl-C must reach only the process that ends this one in order
            env=child_environment(),
        )
        ended = asyncio.ensure_future(self._process.wait())
        answering = asyncio.ensure_future(self._answers())
        try:
            await asyncio.wait((ended, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() or answering.exception() is not None:
                await self.end()
                raise ChildError(
                    f"The server of model '{self.name}' ended with exit code {self._process.returncode} before it served; "
                    "its log says why."
                )
        finally:
            for task in (ended, answering):
                task.cancel()
            await asyncio.gather(ended, answering, return_exceptions=True)

    async def ended(self) -> int:
        """Wait for the end of its process; returns the exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def sleep(self) -> None:
        """Have it give its memory back, after its background work or in the middle of it. Raises ChildError."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._operate("/sleep?level=1&mode=wait")
        except TimeoutError:
            await self._operate("/sleep?level=1&mode=keep")

    async def wake_up(self) -> None:
        """Have it take its memory again. Raises ChildError."""
        await self._operate("/wake_up")

    async def end(self, patience: float = END_S) -> None:
        """End it in good order, or by force after `patience` seconds."""
        if self._process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                async with asyncio.timeout(patience):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        await self.endpoint.close()
        self._line.close()
        for path in (self._file, self._socket):
            path.unlink(missing_ok=True)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _write(self) -> None:
        """Write the arguments for this user alone: keys are among them."""
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(msgspec.to_builtins(self._values), file)  # JSON is YAML

    async def _answers(self) -> None:
        """Return when it answers. It binds its socket at once, and answers once its model is loaded."""
        while not self._socket.exists():
            await asyncio.sleep(LOOKS_S)
        async with self.endpoint.ask("GET", "/health") as answer:
            await whole(answer)

    async def _operate(self, path: str) -> None:
        try:
            async with self.endpoint.ask("POST", path, headers=self._operator) as answer:
                body = await whole(answer)
        except EndpointError as error:
            raise ChildError(f"The server of model '{self.name}' does not answer: {error}") from None
        if answer.status != 200:
            raise ChildError(f"The server of model '{self.name}' refuses {path}: {body[:500].decode(errors='replace')}")
