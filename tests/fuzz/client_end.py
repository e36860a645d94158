"""Damaged messages to a client: a request whose engine says nonsense ends, with an answer or with a sentence, and never hangs.

Owns: good messages of an engine, and a client of a socket that says what a folder holds. Never does: damage anything.
Called by: the table of targets.
"""

import asyncio
import tempfile
from pathlib import Path

import numpy as np
import zmq
import zmq.asyncio

from core.api.errors import CoreError
from core.api.messages import (
    EngineFailed,
    EngineOutput,
    EngineOutputs,
    EngineReady,
    TokenColumns,
    TokenLogprobs,
    UtilityResult,
)
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core.api.stats import SchedulerStats
from core.engine import wire
from core.engine.hello import GREETING
from core_frontend.async_engine import AsyncEngine
from core_supervision.link.zmq_client import ZmqClient
from core_tokens.tokenizer import Tokenizer
from tests.engine.fakes import byte_source, make_config

NAMES = ("0-greeting", "1-ready", "2-outputs", "3-columns", "4-columns", "5-result", "6-outputs", "7-failed")
EPOCH, HANDLE = 3, 0
LIMIT_S = 8.0


def make_messages(folder: Path) -> None:
    """What an engine says to a client whose only request has the handle 0."""
    scores = TokenLogprobs([104, 105], [-0.1, -2.5], [1, 2])
    first = EngineOutput("0:a", 0, 0, [104], [scores], [scores], num_cached_tokens=1, handle=HANDLE)
    last = EngineOutput("0:a", 0, 3, [33], [scores], finish_reason="stop", stop_reason="!", handle=HANDLE)
    handles = np.array([HANDLE], np.int64).tobytes()
    columns = [
        TokenColumns(handles, np.array([start], np.int32).tobytes(), np.array([token], np.int32).tobytes())
        for start, token in ((1, 105), (2, 106))
    ]
    stats = SchedulerStats(1, 0, 0.5)
    messages = (
        wire.encode(EngineReady(EPOCH, 64, 4, 64, "fake", [("weights", 0.5)])),
        wire.encode(EngineOutputs(EPOCH, [first], stats)),
        wire.encode(EngineOutputs(EPOCH, [], stats, columns[0])),
        wire.encode(EngineOutputs(EPOCH, [], stats, columns[1])),
        wire.encode(UtilityResult(0, True, {"a": [1, None]})),
        wire.encode(EngineOutputs(EPOCH, [last], stats)),
        wire.encode(EngineFailed(EPOCH, "a sentence", False, "a traceback")),
    )
    for name, data in zip(NAMES, (GREETING, *messages), strict=True):
        (folder / name).write_bytes(data)


def read_messages(folder: Path) -> None:
    """A client greets, asks, and hears the folder. Raises CoreError when it is told why, TimeoutError when it hangs."""
    messages = [(folder / name).read_bytes() for name in NAMES]
    asyncio.run(asyncio.wait_for(_hear(messages), LIMIT_S))


async def _hear(messages: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/engine.sock"
        with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER, socket_class=zmq.asyncio.Socket) as socket:
            socket.bind(address)
            welcome = asyncio.create_task(_say(socket, messages[:2]))
            client = await ZmqClient.connect(address, timeout_s=LIMIT_S / 2)
            engine = AsyncEngine(make_config(), Tokenizer.from_source(byte_source()), client)
            try:
                asked = asyncio.create_task(_ask(engine))
                await _say(socket, messages[2:], await welcome)
                socket.unbind(address)
                socket.close(linger=200)
                await asked
            finally:
                await engine.close()


async def _say(socket: zmq.asyncio.Socket, messages: list[bytes], to: bytes | None = None) -> bytes:
    """Wait for a word of the client, then say all of it."""
    identity, *_ = await socket.recv_multipart()
    for message in messages:
        await socket.send_multipart([to or identity, message])
    return identity


async def _ask(engine: AsyncEngine) -> None:
    """One request, read to its end."""
    params = SamplingParams(
        max_tokens=8, logprobs=1, prompt_logprobs=1, stop=["!"], output_kind=RequestOutputKind.DELTA
    )
    try:
        async for _ in engine.generate({"prompt_token_ids": [97, 98]}, params, "a"):
            pass
    except CoreError as error:
        assert str(error), "an error without a sentence"
        raise
