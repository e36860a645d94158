"""Large requests and messages are encoded and decoded outside the thread of the event loop, once, and in order."""

import asyncio
import gc
import threading
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest

from core.api.errors import EngineDeadError
from core.api.messages import (
    AbortRequests,
    AddRequest,
    ClientMessage,
    EngineOutput,
    EngineOutputs,
    EngineReady,
    EngineRequest,
    TokenLogprobs,
)
from core.api.sampling_params import SamplingParams
from core.api.stats import SchedulerStats
from core.api.structured_outputs import CompiledGrammar
from core.engine import wire
from core_frontend.completion_state import CompletionState, position_logprobs
from core_supervision.link.connection import LARGE_MESSAGE, EngineConnection, SocketConnection
from core_supervision.link.zmq_client import LARGE_REQUEST, ZmqClient

READY = EngineReady(0, 64, 16, 1 << 20, "test", [])


class Line(EngineConnection):
    """Keeps what is sent, and hands out what the test says came. decoder: as the base class has it."""

    def __init__(self) -> None:
        super().__init__("test")
        self.sent: list[ClientMessage] = []
        self.come: asyncio.Queue[bytes] = asyncio.Queue()

    def post(self, payload: bytes) -> Awaitable[object]:
        self.sent.append(wire.client_message_decoder().decode(payload))
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def _payload(self) -> bytes:
        return await self.come.get()


def choices(count: int, num_ids: int = 3, grammar_bytes: int = 0) -> list[EngineRequest]:
    grammar = CompiledGrammar("test", "key", bytes(grammar_bytes)) if grammar_bytes else None
    ids = [7] * num_ids
    params = SamplingParams(max_tokens=2)
    return [EngineRequest("a", choice, ids, params, seed=1, grammar=grammar) for choice in range(count)]


def watched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each message that is encoded, whether that was in this thread."""
    here = threading.get_ident()
    seen: list[bool] = []
    encode = wire.encode

    def noted(message: msgspec.Struct) -> bytes:
        seen.append(threading.get_ident() == here)
        return encode(message)

    monkeypatch.setattr(wire, "encode", noted)
    return seen


@pytest.mark.parametrize("large", [{"grammar_bytes": LARGE_REQUEST + 1}, {"num_ids": LARGE_REQUEST}])
async def test_a_large_request_is_encoded_once_in_a_thread(
    large: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line()
    client = ZmqClient(line, READY)
    seen = watched(monkeypatch)
    await client.add(choices(4, **large))
    assert seen == [False]
    message = line.sent[0]
    assert isinstance(message, AddRequest) and len(message.handles) == 4
    await client.add(choices(4))
    assert seen == [False, True] and len(line.sent) == 2


async def test_a_large_request_that_is_aborted_while_it_is_encoded_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()
    client = ZmqClient(line, READY)
    loop = asyncio.get_running_loop()
    encode = wire.encode
    aborted = threading.Event()

    def slow(message: msgspec.Struct) -> bytes:
        if isinstance(message, AddRequest):
            loop.call_soon_threadsafe(lambda: (client.abort(["a"]), aborted.set()))
            assert aborted.wait(10)
        return encode(message)

    monkeypatch.setattr(wire, "encode", slow)
    await client.add(choices(2, grammar_bytes=LARGE_REQUEST + 1))
    assert [type(message) for message in line.sent] == [AbortRequests]
    assert client.silence_s == 0.0


async def test_an_engine_that_dies_while_a_large_request_is_encoded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ZmqClient(Line(), READY)
    encode = wire.encode

    def dying(message: msgspec.Struct) -> bytes:
        client.dead_error = EngineDeadError("It ended.")
        return encode(message)

    monkeypatch.setattr(wire, "encode", dying)
    with pytest.raises(EngineDeadError, match="It ended"):
        await client.add(choices(1, grammar_bytes=LARGE_REQUEST + 1))


async def test_large_messages_of_an_engine_are_decoded_in_a_thread_and_in_order() -> None:
    def message(start: int, num_positions: int) -> bytes:
        entry = TokenLogprobs([1, 2], [-0.5, -1.0], [1, 2])
        output = EngineOutput("a", 0, start, [1], prompt_logprobs=[entry] * num_positions or None, handle=0)
        return wire.encode(EngineOutputs(0, [output], SchedulerStats()))

    class Noting:
        def __init__(self, decoder: Any) -> None:
            self.decoder, self.seen = decoder, []

        def decode(self, payload: bytes) -> Any:
            self.seen.append(threading.get_ident())
            return self.decoder.decode(payload)

    line = Line()
    line._decoder = noting = Noting(line._decoder)  # type: ignore[assignment]
    client = ZmqClient(line, READY)
    await client.add(choices(1))
    large = message(0, LARGE_MESSAGE // 8)
    assert len(large) > LARGE_MESSAGE
    for payload in (large, message(1, 0)):
        line.come.put_nowait(payload)
    starts = [(await line.receive()).outputs[0].start for _ in range(2)]  # type: ignore[union-attr]
    here = threading.get_ident()
    assert starts == [0, 1] and [ident == here for ident in noting.seen] == [False, True]


def test_large_payloads_are_not_copied_for_the_socket() -> None:
    copies: list[bool] = []

    class Socket:
        def send(self, payload: bytes, *, copy: bool = True) -> None:
            copies.append(copy)

    line = SocketConnection.__new__(SocketConnection)
    line._socket = Socket()  # type: ignore[assignment]
    line.post(bytes(10))
    line.post(bytes(LARGE_MESSAGE + 1))
    assert copies == [True, False]


def test_log_probabilities_are_nothing_for_the_garbage_collector() -> None:
    entry = TokenLogprobs([*range(300, 321)], [-0.5] * 21, [*range(1, 22)])
    gc.collect()
    before = len(gc.get_objects())
    kept = [position_logprobs(entry, None) for _ in range(1000)]
    assert len(kept) == 1000 and len(gc.get_objects()) - before < 500


def test_log_probabilities_that_were_given_away_are_not_kept() -> None:
    state = CompletionState(0, SamplingParams(logprobs=1), [1], None, None)
    entry = TokenLogprobs([5, 6], [-0.5, -1.0], [1, 2])
    for start in range(3):
        state.update(EngineOutput("a", 0, start, [5], logprobs=[entry]))
        given = state.snapshot(delta=True).logprobs
        assert given is not None and len(given) == 1 and state.logprobs == []
    assert state.snapshot(delta=True).logprobs == []
    assert state.cumulative_logprob == -1.5
