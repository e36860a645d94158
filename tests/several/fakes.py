"""Servers of models that answer by a script, in place of processes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from core_commands.client.endpoint import EndpointError
from core_commands.several.child import ChildError


class Answer:
    def __init__(self, status, headers, parts):
        self.status, self.headers, self.arrived = status, headers, 0.0
        self._parts = parts

    async def parts(self):
        for part in self._parts:
            if isinstance(part, Exception):
                raise part
            if isinstance(part, asyncio.Event):
                await part.wait()
            else:
                yield part


class FakeChild:
    """calls: what was asked of its life. seen: requests. parts: of every answer; an event waits, an error breaks off."""

    def __init__(self, name):
        self.name = name
        self.calls = []
        self.seen = []
        self.parts = [b'{"by": "', name.encode(), b'"}']
        self.headers = {"content-type": "application/json", "connection": "close", "x-own": "kept"}
        self.fails_to = set()
        self.refuses = False
        self.is_running = False
        self.end_event = asyncio.Event()
        self.endpoint = self

    @asynccontextmanager
    async def ask(self, method, path, body=b"", headers=None):
        if path == "/metrics":
            text = f'# HELP core:n A number.\n# TYPE core:n counter\ncore:n{{model_name="{self.name}"}} 1\n'
            yield Answer(200, {}, [text.encode()])
            return
        assert self.is_running, "a request is sent to a model that is not awake"
        if self.refuses:
            raise EndpointError("refused")
        self.seen.append((method, path, bytes(body), dict(headers or {})))
        yield Answer(200, self.headers, self.parts)

    async def start(self):
        await self._do("start")
        self.is_running = True
        self.end_event = asyncio.Event()

    async def sleep(self):
        await self._do("sleep")

    async def wake_up(self):
        await self._do("wake")

    async def ended(self):
        await self.end_event.wait()
        return -9

    async def end(self, patience=0.0):
        self.is_running = False

    def kill(self):
        self.is_running = False

    async def _do(self, call):
        self.calls.append(call)
        for _ in range(5):
            await asyncio.sleep(0)
        if call in self.fails_to:
            raise ChildError(f"The server of model '{self.name}' cannot {call}.")
