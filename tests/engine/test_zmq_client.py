"""A real engine process behind real sockets: start, streams, utilities, and every way it can end."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes import EOS, KILL, RAISE, TARGET, make_config, reference

from core.api.errors import EngineDeadError, RequestError, UserError, UtilityError
from core.api.messages import EngineOutput, EngineOutputs, EngineReady, EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.stats import SchedulerStats
from core.engine import wire
from core.engine.faults import FAULTS_BEFORE_PROBE
from core.processes import child_environment
from core_supervision.child import EngineProcess
from core_supervision.link.connection import EngineConnection
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.owned_engine import start_engine


def request(name: str, prompt: list[int], max_tokens: int = 5) -> EngineRequest:
    return EngineRequest(name, 0, prompt, SamplingParams(max_tokens=max_tokens), seed=1, stop_token_ids=[EOS])


class Ear:
    """Collects what a client hears."""

    def __init__(self) -> None:
        self.messages: list[EngineOutputs] = []
        self.death: EngineDeadError | None = None
        self._news = asyncio.Event()

    def hear(self, message: EngineOutputs) -> None:
        self.messages.append(message)
        self._news.set()

    def die(self, error: EngineDeadError) -> None:
        self.death = error
        self._news.set()

    def outputs(self, name: str) -> list[EngineOutput]:
        return [output for message in self.messages for output in message.outputs if output.request_id == name]

    def finished(self, name: str) -> bool:
        return any(output.finish_reason for output in self.outputs(name))

    async def until(self, condition: Any, timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self._news.wait()
                self._news.clear()


async def start(ear: Ear | None = None, **options: Any) -> ZmqClient:
    client = await start_engine(make_config(options=options), executor=TARGET, epoch=7)
    ear = ear or Ear()
    client.listen(ear.hear, ear.die)
    return client


def socket_directory(client: ZmqClient) -> Path:
    return Path(client.address.removeprefix("ipc://")).parent


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_tokens_come_as_without_a_process() -> None:
    ear = Ear()
    client = await start(ear)
    try:
        assert (client.ready.epoch, client.ready.num_blocks, client.ready.block_size) == (7, 64, 4)
        assert client.ready.numerics == "fake"
        assert ("fake", 0.5) in client.ready.phases
        mode = stat.S_IMODE(socket_directory(client).stat().st_mode)
        assert mode == 0o700
        await client.add([request("a", [1, 2, 3], 9)])
        await client.add([request("b", list(range(40)), 4)])
        await ear.until(lambda: ear.finished("a") and ear.finished("b"))
        assert [t for output in ear.outputs("a") for t in output.token_ids] == reference([1, 2, 3], 9)
        assert [t for output in ear.outputs("b") for t in output.token_ids] == reference(list(range(40)), 4)
        assert await client.call("check_integrity") is None
        assert await client.call("reset_prefix_cache") is True
        with pytest.raises(UtilityError, match="'format_disk' is unknown; expected one of check_integrity, "):
            await client.call("format_disk")
        assert client.dead_error is None
    finally:
        await client.close()
    assert not socket_directory(client).exists()
    assert not is_alive(client.pid)
    assert ear.death is None
    with pytest.raises(EngineDeadError, match="closed"):
        await client.add([request("c", [1])])
    await client.close()


async def test_abort_frees() -> None:
    ear = Ear()
    client = await start(ear, delay_s=0.01)
    try:
        await client.add([request("a", [1, 2], 60)])
        await client.add([request("b", [3, 4], 60)])
        await ear.until(lambda: ear.outputs("a") and ear.outputs("b"))
        client.abort(["a"])
        client.abort_choices([("b", 0)])
        await client.add([request("c", [5], 2)])
        await ear.until(lambda: ear.finished("c") and ear.messages[-1].stats.num_running == 0)
        assert not ear.finished("a")
        assert not ear.finished("b")
        assert ear.messages[-1].stats.kv_cache_usage == 0.0
    finally:
        await client.close()


async def test_a_killed_process_is_noticed() -> None:
    ear = Ear()
    client = await start(ear, delay_s=0.01)
    try:
        await client.add([request("a", [1, 2], 60)])
        await ear.until(lambda: ear.outputs("a"))
        call = asyncio.create_task(client.call("check_integrity"))
        os.kill(client.pid, signal.SIGKILL)
        await ear.until(lambda: ear.death is not None, 60.0)
        assert "SIGKILL" in str(ear.death)
        await asyncio.gather(call, return_exceptions=True)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await client.add([request("b", [1])])
        assert not socket_directory(client).exists()
    finally:
        await client.close()


async def test_a_request_that_crashes_the_process() -> None:
    ear = Ear()
    client = await start(ear)
    await client.add([request("a", [KILL])])
    await ear.until(lambda: ear.death is not None, 5.0)
    await client.close()


async def test_one_failing_step_ends_its_request_only() -> None:
    ear = Ear()
    client = await start(ear)
    await client.add([request("bad", [RAISE])])
    await ear.until(lambda: ear.finished("bad"))
    assert ear.outputs("bad")[-1].finish_reason == "error"
    await client.add([request("good", [1])])
    await ear.until(lambda: ear.finished("good"))
    assert ear.death is None
    await client.close()


async def test_a_broken_executor_ends_the_engine_with_the_cause() -> None:
    ear = Ear()
    client = await start(ear, always_fail=True)
    for name in [str(attempt) for attempt in range(FAULTS_BEFORE_PROBE)]:
        await client.add([request(name, [1])])
        await ear.until(lambda name=name: ear.finished(name) or ear.death is not None)
    await ear.until(lambda: ear.death is not None)
    assert ear.finished("0")
    assert "steps in a row" in str(ear.death)
    assert "told to fail" in str(ear.death)
    await client.close()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"refuse": "The model is too large; use --max-model-len."}, UserError, "^The model is too large"),
        ({"break": "kaputt"}, EngineDeadError, "RuntimeError: kaputt"),
        ({"exit": 9}, EngineDeadError, "exited with code 9.*last words of the fake"),
    ],
)
async def test_failed_starts(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match="(?s)" + words):
        await start(**options)


async def test_start_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(options={"start_s": 3600.0})
    with pytest.raises(EngineDeadError, match=r"not ready after 0\.5 s"):
        await start_engine(config, executor=TARGET, timeout_s=0.5)


async def test_unknown_executor_is_named() -> None:
    with pytest.raises(EngineDeadError, match="no_such_module"):
        await start_engine(make_config(), executor="no_such_module:Thing")


async def test_gap_kills_the_engine_and_stale_epochs_do_not() -> None:
    ear = Ear()
    client = await start(ear, delay_s=0.05)
    await client.add([request("a", [1, 2], 60)])
    stale = EngineOutputs(6, [EngineOutput("a", 0, 99, [1])], SchedulerStats())
    client._dispatch(stale)
    await ear.until(lambda: len(ear.outputs("a")) > 1)
    assert ear.death is None
    client._ledger._live["a"][0].next_start += 1
    await ear.until(lambda: ear.death is not None)
    assert "continued at token" in str(ear.death)
    await client.close()
    assert not is_alive(client.pid)


async def test_unreadable_messages_do_not_stop_the_engine() -> None:
    ear = Ear()
    client = await start(ear)
    send = client._send
    await send(b"\xc1 no msgpack")
    await send(msgspec.msgpack.encode(["delete_everything"]))
    bad = request("bad", [1])
    client._ledger.admit([bad])
    await send(msgspec.msgpack.encode(["add", ["bad", 0, ["no", "ids"], {}, 1], [bad.handle]]))
    await send(msgspec.msgpack.encode(["add", ["worse", 0, [1], {"temperature": -5.0}, 1], [99]]))
    await client.add([request("good", [1])])
    await ear.until(lambda: ear.finished("good") and ear.finished("bad"))
    assert "could not be read" in str(ear.outputs("bad")[0].stop_reason)
    await client.close()


async def test_what_choices_share_travels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ear = Ear()
    client = await start(ear)
    sizes: list[int] = []
    send = client._send

    async def measure(payload: bytes) -> None:
        sizes.append(len(payload))
        await send(payload)

    monkeypatch.setattr(client, "_send", measure)
    stops = list(range(1000, 2000))
    for name, n in (("one", 1), ("many", 8)):
        shared = msgspec.structs.replace(request(name, [1] * 20, 3), stop_token_ids=stops)
        await client.add([msgspec.structs.replace(shared, choice=choice) for choice in range(n)])
        await ear.until(lambda name=name, n=n: len({o.choice for o in ear.outputs(name) if o.finish_reason}) == n)
    assert sizes[1] < sizes[0] + 100
    await client.close()


async def test_what_no_message_can_hold_is_the_requests_fault() -> None:
    client = await start()
    with pytest.raises(RequestError, match="cannot be sent"):
        await client.add([EngineRequest("a", 0, [1], SamplingParams(extra_args={"x": object()}), seed=1)])
    await client.close()


async def test_stopping_a_stubborn_process() -> None:
    ear = Ear()
    client = await start(ear, delay_s=3600.0)
    await client.add([request("a", [1])])
    await asyncio.sleep(0.2)
    await client.close(grace_s=0.2)
    assert not is_alive(client.pid)


async def test_interrupt_is_left_to_the_parent() -> None:
    ear = Ear()
    client = await start(ear)
    assert os.getpgid(client.pid) != os.getpgrp()  # a terminal's Ctrl-C, which may come before it ignores it
    os.kill(client.pid, signal.SIGINT)
    await client.add([request("a", [1])])
    await ear.until(lambda: ear.finished("a"))
    await client.close()


ORPHAN = """
import asyncio, os, signal, sys
from fakes import TARGET, make_config
from core_supervision.owned_engine import start_engine

async def main():
    client = await start_engine(make_config(), executor=TARGET)
    print(client.pid, client.address, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_the_process_ends_with_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=20, env=child_environment()
    )
    assert done.returncode == -signal.SIGKILL
    pid, address = int(done.stdout.split()[0]), done.stdout.split()[1]
    deadline = time.monotonic() + 3.0
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)
    assert not Path(address.removeprefix("ipc://")).parent.exists()


EARLY_ORPHAN = """
import os, signal
from core_supervision.child import EngineProcess
from core_supervision.link.connection import EngineConnection

process = EngineProcess.spawn()
print(process.pid, process.address, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_whose_parent_ends_before_it_binds_leaves_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY_ORPHAN], capture_output=True, text=True, timeout=20, env=child_environment()
    )
    pid, address = int(done.stdout.split()[0]), done.stdout.split()[1]
    folder = Path(address.removeprefix("ipc://")).parent
    deadline = time.monotonic() + 10.0
    while (is_alive(pid) or folder.exists()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)
    assert not folder.exists()


async def test_a_core_folder_in_the_working_directory_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").write_text("raise RuntimeError('the wrong core')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    client = await start()
    await client.close()


def test_configuration_survives_the_wire() -> None:
    message = wire.StartEngine(3, make_config(options={"script": "x", "nested": {"a": [1, 2.5, None]}}), 20)
    assert msgspec.msgpack.decode(wire.encode(message), type=wire.StartEngine) == message


async def test_long_temporary_directories_still_give_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    process = EngineProcess.spawn(TARGET)
    assert len(process.address) < 107
    process.kill()
    await process.stop(1.0)


class Chatterbox(EngineConnection):
    """Has always said something already, a thousand times."""

    num_said = 0

    async def _payload(self) -> bytes:
        self.num_said += 1
        if self.num_said > 1000:
            await asyncio.Event().wait()
        return wire.encode(EngineOutputs(0, [], SchedulerStats()))

    async def until_ended(self, voice: Any) -> EngineDeadError:
        await asyncio.Event().wait()
        raise AssertionError

    def post(self, payload: bytes) -> Any:
        return asyncio.sleep(0)

    def close(self) -> None:
        pass


async def test_an_engine_that_says_more_than_can_be_handled_does_not_stop_everything_else() -> None:
    engine = Chatterbox("there")
    client = ZmqClient(engine, EngineReady(0, 8, 4, 64, "fake", []))
    client.listen(lambda message: time.sleep(0.001), lambda error: None)
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert engine.num_said < 1000
    await client.close(0.0)
