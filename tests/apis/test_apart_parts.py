"""What an API server and an engine that are two commands go by: keys, arguments, who may take part, what is too large."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from zmq.utils import z85

from core.api.errors import ConfigError, UserError
from core.api.messages import EngineOutput, EngineOutputs, EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.stats import SchedulerStats
from core_apis.remote.agreement import adopted, change, objection
from core_apis.remote.messages import Hello, channel_kind, channel_of
from core_apis.remote.relay import smaller
from core_apis.remote.sockets import PIECE_BYTES, Link
from core_apis.remote.waiting import Waiting
from core_config.resolve import resolve
from core_config.served.server_config import RemoteSettings
from core_frontend.library.async_llm import AsyncLLM
from core_supervision.link.secured import is_loopback, read_secret
from core_supervision.link.zmq_client import _check_size, _messages
from tests.engine.fakes import make_config


def key(path: Path, text: str = "0123456789abcdef" * 4, mode: int = 0o600) -> Path:
    path.write_text(text + "\n")
    path.chmod(mode)
    return path


def problems(model: Path, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve({"model": str(model), **arguments}, context="serve", environ={})
    return "\n".join(caught.value.problems)


def test_what_stands_at_the_wrong_end_is_refused_by_name(tiny_llama: Path, tmp_path: Path) -> None:
    front = {"data_parallel_size_local": 0}
    told = problems(tiny_llama, headless=True, port=8001, api_key=["k"], max_num_queued_reqs=4, max_num_seqs=4)
    assert "--admin-api-key" in problems(tiny_llama, headless=True, admin_api_key=["k"])
    assert all(
        flag in told for flag in ("--port", "--api-key", "--max-num-queued-reqs", "only the API server reads this")
    )
    assert "--max-num-seqs" not in told
    assert "give one" in problems(tiny_llama, headless=True, **front)
    assert "one process" in problems(tiny_llama, api_server_count=2, **front)
    for role in ({"headless": True}, front):
        told = problems(tiny_llama, data_parallel_address="0.0.0.0", **role)
        assert "--data-parallel-address 0.0.0.0: other machines reach it" in told and "--engine-key-file" in told
    for file, sentence in (
        (tmp_path / "none", "cannot be read"),
        (key(tmp_path / "open", mode=0o640), r"others may use it (mode 640)"),
        (key(tmp_path / "short", "secret"), "has 6 characters"),
    ):
        assert sentence in problems(tiny_llama, engine_key_file=str(file), **front)
    found = resolve(
        {"model": str(tiny_llama), "data_parallel_address": "0.0.0.0", "engine_key_file": str(key(tmp_path / "key")), **front},
        context="serve", environ={},
    )  # fmt: skip
    assert found.server.remote is not None and found.server.remote.role == "api_server"
    with pytest.raises(UserError, match="only `core serve` parts"):
        AsyncLLM(str(tiny_llama), headless=True)


def test_only_addresses_of_this_machine_are_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org")))


@contextmanager
def link(port: int, key_file: Path | None, *, listens: bool) -> Iterator[Link]:
    shown = None if key_file is None else str(key_file)
    settings = RemoteSettings(
        role="api_server" if listens else "engine", address="127.0.0.1", port=port, key_file=shown
    )
    made = Link(settings, listens=listens)
    try:
        yield made
    finally:
        made.close()


async def test_only_who_has_the_key_is_heard(tmp_path: Path, port: int) -> None:
    ours, other = key(tmp_path / "ours"), key(tmp_path / "other", "another secret, which is as long as the first")
    with link(port, ours, listens=True) as front:
        for wrong in (other, None):
            with link(port, wrong, listens=False) as stranger:
                stranger.socket.send_multipart([b"hello", b"from a stranger"])
                told = await asyncio.wait_for(stranger.trouble(), 10)
                assert told is None or "--engine-key-file" in told
                assert not await front.socket.poll(100)
        with link(port, ours, listens=False) as engine:
            await engine.socket.send_multipart([b"hello", b"from the engine"])
            _, *frames = await asyncio.wait_for(front.socket.recv_multipart(), 10)
            assert frames == [b"hello", b"from the engine"]


async def test_knowing_the_fronts_public_key_is_not_enough(tmp_path: Path, port: int) -> None:
    ours = key(tmp_path / "ours")
    with link(port, ours, listens=True) as front:
        stranger = zmq.asyncio.Context().socket(zmq.DEALER)
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
        stranger.curve_serverkey = zmq.curve_public(z85.encode(read_secret(str(ours))))
        stranger.connect(f"tcp://127.0.0.1:{port}")
        stranger.send(b"hello")
        assert not await front.socket.poll(500)
        stranger.close(linger=0)


GREETING_OF_STRANGERS = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)


async def test_a_crowd_of_strangers_stops_nobody_and_fills_no_memory(tmp_path: Path, port: int) -> None:
    ours = key(tmp_path / "ours")
    large = b"x" * (5 * PIECE_BYTES + 1)
    with link(port, ours, listens=True) as front, link(port, ours, listens=False) as engine:

        async def watch() -> None:
            while True:
                await front.trouble()

        async def ask() -> None:
            await engine.send(b"question", large)
            identity, *_ = await front.receive_from()
            await front.send(b"answer", large, identity)
            assert await engine.receive() == (b"answer", large)

        watching = asyncio.ensure_future(watch())
        await asyncio.wait_for(ask(), 10)
        for _ in range(2500):  # more than the library keeps reports of
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n" * 4)
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GREETING_OF_STRANGERS + b"\x06" + (1 << 20).to_bytes(8, "big") + bytes(100))
        await asyncio.wait_for(reader.read(), 5)  # hung up at the size, which is no secret's
        await asyncio.wait_for(ask(), 10)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_port_in_use_is_a_sentence(port: int) -> None:
    told = rf"127\.0\.0\.1:{port} cannot be used .*--data-parallel-rpc-port"
    with link(port, None, listens=True), pytest.raises(UserError, match=told), link(port, None, listens=True):
        pass


def resolution(given: dict[str, Any] | None = None, **model: Any) -> Any:
    config = make_config(**model)
    values = {"max_model_len": (config.model.max_model_len, "default", ""), "dtype": ("bfloat16", "derived", "")}
    return SimpleNamespace(engine=config, given=given or {}, arguments=values)


def said(**fields: Any) -> Hello:
    engine = fields.pop("engine", make_config())
    plain = {"max_model_len": engine.model.max_model_len, "dtype": "bfloat16"}
    values = {"tokenizer": "t", "weights": "w", "numerics": "n", "byteorder": "little", "who": "it", "explained": {}}
    return Hello(engine=engine, **{"arguments": plain} | values | fields)


def test_an_engine_of_another_model_or_with_other_arguments_is_turned_away() -> None:
    assert objection(resolution(), "t", said()) == ""
    assert objection(resolution({"max_model_len": 64}), "t", said()) == ""
    assert "another configuration" in objection(resolution(hf_config={"a": 1}), "t", said())
    assert "tokenizer" in objection(resolution(), "other", said())
    assert "endian" in objection(resolution(), "t", said(byteorder="big"))
    longer = said(engine=make_config(max_model_len=128))
    assert objection(resolution(), "t", longer) == "", "the engine's value counts"
    told = objection(resolution({"max_model_len": 64}), "t", longer)
    assert told.startswith("--max-model-len is 64 at the API server and 128 at the engine")

    first = said()
    assert change(first, said()) == ""
    assert change(first, said(engine=make_config(scheduler={"max_num_seqs": 2}))) == ""
    assert "weights" in change(first, said(weights="x"))
    assert "'x'" in change(first, said(numerics="x"))
    assert change(first, longer).startswith("Its max_model_len is 128")


def test_the_front_keeps_what_it_alone_goes_by() -> None:
    own = make_config(scheduler={"max_num_queued_reqs": 3}, stall_timeout_s=7.0, generation={"temperature": 0.3})
    engine = make_config(max_model_len=128, scheduler={"max_num_seqs": 2})
    found = adopted(own, engine)
    assert (found.scheduler.max_num_queued_reqs, found.stall_timeout_s) == (3, 7.0)
    assert found.model.generation == {"temperature": 0.3}
    assert (found.model.max_model_len, found.scheduler.max_num_seqs) == (128, 2)


def test_an_output_that_is_too_large_ends_alone() -> None:
    outputs = [
        EngineOutput("1:small", 0, 4, [5], handle=1),
        EngineOutput("1:large", 0, 4, [5] * 1000, handle=2),
        EngineOutput("1:done", 0, 4, [5] * 2000, handle=3, finish_reason="stop"),
    ]
    message = EngineOutputs(0, outputs, SchedulerStats())
    payload, leftover = smaller(msgspec.msgpack.encode(message))
    found = msgspec.msgpack.decode(payload, type=EngineOutputs).outputs
    assert [output.finish_reason for output in found] == [None, "error", "error"]
    assert found[0].token_ids == [5] and "too many for the link" in str(found[1].stop_reason)
    assert leftover.keys == [("large", 0)]


def test_requests_have_the_engines_time_and_a_size_that_can_be_sent() -> None:
    request = EngineRequest("a", 0, [1, 2], SamplingParams(), 7, deadline=100.0)
    (message,) = _messages([request], 25.0)
    assert message.request.deadline == 125.0 and request.deadline == 100.0
    assert _messages([msgspec.structs.replace(request, deadline=0.0)], 25.0)[0].request.deadline == 0.0
    _check_size(b"1234", None)
    with pytest.raises(ValueError, match=r"5 bytes.*at most 4"):
        _check_size(b"12345", 4)


def test_kinds_of_channels() -> None:
    assert channel_of(channel_kind(12)) == 12
    assert all(
        channel_of(frame) is None for frame in (b"talk", b"channel ", b"channel x", b"12", b"channel " + b"9" * 30)
    )


def test_a_wait_says_so_now_and_then_and_has_an_end(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    waiting = Waiting("the API server", 60.0, clock=lambda: now[0])
    assert waiting.look("there") is None and not caplog.records
    waiting.begin()
    lines: list[int] = []
    for _ in range(60):
        now[0] += 1.0
        assert waiting.look("there") is None
        lines.append(len(caplog.records))
    assert lines[-1] == 2
    waiting.trouble = "it speaks otherwise"
    now[0] += 1.0
    assert "in 60 s" in str(waiting.look("there")) and "it speaks otherwise" in str(waiting.look("there"))
    waiting.end()
    assert waiting.look("there") is None
