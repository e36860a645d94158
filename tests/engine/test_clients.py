"""Several clients of one engine process: each gets its own tokens, and takes only its own requests with it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
import zmq.asyncio
from fakes import TARGET, make_config, reference

from core.api.errors import EngineDeadError, UtilityError
from core.api.messages import CLIENT_SHIFT, EngineOutput, EngineOutputs, EngineRequest, Resume, TokenColumns
from core.api.sampling_params import SamplingParams
from core.api.stats import SchedulerStats
from core.engine.clients import Clients
from core.engine.hello import GREETING, MAJOR, MINOR, greeting_problem
from core.processes import child_environment
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.owned_engine import start_engine

ENDLESS = 1500
"""Tokens that take longer than any test."""


class User:
    """A client and what it heard."""

    def __init__(self, client: ZmqClient) -> None:
        self.client = client
        self.tokens: dict[str, list[int]] = {}
        self.finished: set[str] = set()
        self.stats = SchedulerStats()
        self.num_running = 0
        self.death: EngineDeadError | None = None
        self._news = asyncio.Event()
        client.listen(self._hear, self._die)

    async def ask(self, name: str, prompt: list[int], max_tokens: int, given: list[int] | None = None) -> None:
        resume = None if given is None else Resume(given)
        params = SamplingParams(max_tokens=max_tokens)
        await self.client.add([EngineRequest(name, 0, prompt, params, seed=1, resume=resume)])

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(10.0):
            while not condition():
                await self._news.wait()
                self._news.clear()

    def _hear(self, message: EngineOutputs) -> None:
        self.stats = message.stats
        self.num_running = message.stats.num_running
        for output in message.outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.finished.add(output.request_id)
        self._news.set()

    def _die(self, error: EngineDeadError) -> None:
        self.death = error
        self._news.set()


Use = Callable[[User, User], Awaitable[None]]


async def start(**options: Any) -> User:
    return User(
        await start_engine(
            make_config(options={"num_blocks": 2048, **options}, max_model_len=2048), executor=TARGET, epoch=3
        )
    )


async def use_with_guest(owner: User, use: Use) -> None:
    guest = User(await ZmqClient.connect(owner.client.address))
    try:
        await use(owner, guest)
    finally:
        await guest.client.close()


@pytest.fixture(scope="module")
def with_guest() -> Iterator[Callable[[Use], None]]:
    """Runs a test with an owner and a guest of one engine, which all tests share."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        owner = runner.run(start(delay_s=0.005))

        def run(use: Use) -> None:
            owner.tokens.clear()
            owner.finished.clear()
            runner.run(use_with_guest(owner, use))
            runner.run(owner.client.call("check_integrity"))

        yield run
        runner.run(owner.client.close())


def with_own_engine(use: Use) -> None:
    async def run() -> None:
        owner = await start()
        try:
            await use_with_guest(owner, use)
        finally:
            await owner.client.close()

    asyncio.run(run())


def test_each_client_gets_its_own_tokens_under_equal_ids(with_guest: Callable[[Use], None]) -> None:
    async def use(owner: User, guest: User) -> None:
        mine, theirs = owner.client.ready, guest.client.ready
        assert (mine.epoch, mine.num_blocks, mine.numerics) == (theirs.epoch, theirs.num_blocks, theirs.numerics)
        assert mine.client != theirs.client
        for name, length in (("a", 3), ("b", 20)):
            await owner.ask(name, list(range(length)), 25)
            await guest.ask(name, list(range(1, length)), 25)
        await owner.until(lambda: owner.finished == {"a", "b"})
        await guest.until(lambda: guest.finished == {"a", "b"})
        assert owner.tokens == {"a": reference([0, 1, 2], 25), "b": reference(list(range(20)), 25)}
        assert guest.tokens == {"a": reference([1, 2], 25), "b": reference(list(range(1, 20)), 25)}
        assert await owner.client.call("check_integrity") is None
        await owner.until(lambda: owner.num_running == 0)
        assert await guest.client.call("reset_prefix_cache") is True
        with pytest.raises(UtilityError, match="'ping' has no argument 'twice'"):
            await guest.client.call("ping", {"twice": 1})

    with_guest(use)


def test_a_client_comes_and_goes_while_the_other_streams(with_guest: Callable[[Use], None]) -> None:
    async def use(owner: User, guest: User) -> None:
        await owner.ask("same", [1, 2], ENDLESS)
        await owner.until(lambda: owner.tokens)
        late = User(await ZmqClient.connect(owner.client.address))
        await late.ask("same", [7], ENDLESS)
        await late.ask("other", [8], ENDLESS)
        await late.until(lambda: len(late.tokens) == 2)
        await late.client.close()
        await owner.until(lambda: owner.num_running == 1)
        num_tokens = len(owner.tokens["same"])
        await owner.until(lambda: len(owner.tokens["same"]) > num_tokens)
        owner.client.abort(["same"])
        streamed = owner.tokens["same"]
        assert streamed == reference([1, 2], len(streamed))
        assert not owner.finished
        assert not guest.tokens

    with_guest(use)


def test_aborts_reach_only_the_clients_own_requests(with_guest: Callable[[Use], None]) -> None:
    async def use(owner: User, guest: User) -> None:
        for user, length in ((owner, 50), (guest, ENDLESS)):
            await user.ask("x", [1], length)
            await user.ask("y", [2], length)
            await user.until(lambda user=user: len(user.tokens) == 2)
        guest.client.abort(["x"])
        guest.client.abort_choices([("y", 0)])
        await owner.until(lambda: owner.finished == {"x", "y"})
        assert owner.tokens == {"x": reference([1], 50), "y": reference([2], 50)}
        await owner.until(lambda: owner.num_running == 0)
        assert not guest.finished

    with_guest(use)


def test_the_owner_declares_a_client_gone(with_guest: Callable[[Use], None]) -> None:
    async def use(owner: User, guest: User) -> None:
        await guest.ask("a", [1], ENDLESS)
        await guest.until(lambda: guest.tokens)
        guest.client.declare_gone(owner.client.ready.client)
        owner.client.declare_gone(guest.client.ready.client)
        await guest.until(lambda: guest.death is not None)
        assert "declared this client gone" in str(guest.death)
        await owner.ask("b", [2], 4)
        await owner.until(lambda: owner.finished and owner.num_running == 0)
        assert owner.tokens == {"b": reference([2], 4)}

    with_guest(use)


KILLED = """
import asyncio, os, signal, sys
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core_supervision.link.zmq_client import ZmqClient

async def main():
    client = await ZmqClient.connect(sys.argv[1])
    client.listen(lambda message: os.kill(os.getpid(), signal.SIGKILL), print)
    await client.add([EngineRequest("a", 0, [5], SamplingParams(max_tokens=1500), seed=1)])
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_client_that_was_killed_leaves_no_requests(with_guest: Callable[[Use], None]) -> None:
    async def use(owner: User, guest: User) -> None:
        command = [sys.executable, "-c", KILLED, owner.client.address]
        killed = await asyncio.to_thread(subprocess.run, command, timeout=30, env=child_environment())
        assert killed.returncode == -signal.SIGKILL
        await owner.until(lambda: owner.num_running == 0)
        await owner.ask("a", [1], 3)
        await owner.until(lambda: owner.finished)
        assert owner.tokens == {"a": reference([1], 3)}

    with_guest(use)


def test_every_client_hears_who_halts_the_engine(with_guest: Callable[[Use], None]) -> None:
    async def use(owner: User, guest: User) -> None:
        async def told(phase: str, *reasons: str) -> None:
            wanted = (phase, list(reasons))
            await owner.until(lambda: (owner.stats.phase, [each.reason for each in owner.stats.holders]) == wanted)

        await guest.client.call("pause", {"mode": "wait", "hold": 5})
        await told("paused", "wait")
        await guest.client.call("pause", {"mode": "keep"})
        await told("paused", "wait", "pause")
        await owner.client.call("resume")
        await told("running")

    with_guest(use)


HOLDS = """
import asyncio, os, signal, sys
from core_supervision.link.zmq_client import ZmqClient

async def main():
    client = await ZmqClient.connect(sys.argv[1])
    client.listen(lambda message: None, print)
    state = await client.call("pause", {"mode": "wait", "hold": 5})
    assert state["is_paused"], state
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_client_that_was_killed_halts_nobody(with_guest: Callable[[Use], None]) -> None:
    async def use(owner: User, guest: User) -> None:
        command = [sys.executable, "-c", HOLDS, owner.client.address]
        killed = await asyncio.to_thread(subprocess.run, command, timeout=30, env=child_environment())
        assert killed.returncode == -signal.SIGKILL
        await guest.ask("a", [1], 3)
        await guest.until(lambda: guest.finished)
        assert guest.tokens == {"a": reference([1], 3)}
        assert not (await owner.client.call("lifecycle"))["is_paused"]

    with_guest(use)


def test_clients_hear_of_the_engines_end() -> None:
    async def ended(user: User, end: Callable[[], Awaitable[None]]) -> str:
        await end()
        await user.until(lambda: user.death is not None)
        with pytest.raises(EngineDeadError):
            await user.client.call("ping")
        return str(user.death)

    async def by_owner(owner: User, guest: User) -> None:
        assert "its owner has ended it" in await ended(guest, owner.client.close)

    async def by_signal(owner: User, guest: User) -> None:
        async def kill() -> None:
            os.kill(owner.client.pid, signal.SIGKILL)

        assert "closed the connection" in await ended(guest, kill)

    with_own_engine(by_owner)
    with_own_engine(by_signal)


def test_a_resumed_request_goes_on_in_its_place(with_guest: Callable[[Use], None]) -> None:
    async def use(owner: User, guest: User) -> None:
        whole = reference([1, 2, 3], 20)
        await guest.ask("a", [1, 2, 3], 20, given=whole[:11])
        await guest.ask("b", [1, 2, 3], 20, given=whole)
        await guest.until(lambda: guest.finished == {"a", "b"})
        assert guest.tokens == {"a": whole[11:], "b": []}
        assert guest.death is None

    with_guest(use)


def test_another_version_of_the_protocol_is_refused_with_a_sentence(with_guest: Callable[[Use], None]) -> None:
    assert greeting_problem(b"core-engine %d.%d" % (MAJOR, MINOR + 7), "engine") == ""
    older = greeting_problem(b"core-engine %d.4" % (MAJOR - 1), "engine")
    assert f"version {MAJOR - 1}.4 of the engine protocol and this end {MAJOR}.{MINOR}" in older
    assert "expected b'core-engine" in greeting_problem(b"\x93\x00", "client")

    async def use(owner: User, guest: User) -> None:
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.connect(owner.client.address)
            await stranger.send(b"core-engine 99.0")
            assert await asyncio.wait_for(stranger.recv(), 10) == GREETING
            stranger.setsockopt(zmq.LINGER, 0)
        await owner.ask("a", [1], 3)
        await owner.until(lambda: owner.finished)

    with_guest(use)


async def test_nobody_answers() -> None:
    with pytest.raises(EngineDeadError, match=r"No engine answered at ipc:///nowhere/engine\.sock for 0\.2 s"):
        await ZmqClient.connect("ipc:///nowhere/engine.sock", timeout_s=0.2)


class FakeRouter:
    """Delivers greetings."""

    def __init__(self, *identities: bytes) -> None:
        self.greetings = [[identity, GREETING] for identity in identities]

    def recv_multipart(self) -> list[bytes]:
        return self.greetings.pop(0)

    def send_multipart(self, frames: list[bytes]) -> None: ...

    def setsockopt(self, option: int, value: int) -> None: ...


def test_columns_are_cut_by_client_and_stay_columns() -> None:
    clients = Clients(FakeRouter(b"one", b"two", b"three"))  # type: ignore[arg-type]
    numbers = [clients.receive()[0].number for _ in range(3)]  # type: ignore[index]
    handles = np.array([numbers[1] << CLIENT_SHIFT, (numbers[0] << CLIENT_SHIFT) + 9, (numbers[1] << CLIENT_SHIFT) + 4])
    tokens = TokenColumns(
        handles.astype(np.int64).tobytes(),
        np.arange(3, dtype=np.int32).tobytes(),
        np.array([5, 6, 7], np.int32).tobytes(),
    )
    record = EngineOutput("name", 0, 3, [8], finish_reason="stop", handle=(numbers[2] << CLIENT_SHIFT) + 1)
    shares = dict(
        (client.number, message)
        for client, message in clients.share(EngineOutputs(1, [record], SchedulerStats(num_running=3), tokens))
    )
    assert list(shares[numbers[0]].tokens) == [((numbers[0] << CLIENT_SHIFT) + 9, 1, 6)]
    assert [(start, token) for _, start, token in shares[numbers[1]].tokens] == [(0, 5), (2, 7)]
    assert (len(shares[numbers[2]].tokens), shares[numbers[2]].outputs) == (0, [record])
    assert all(message.stats.num_running == 3 for message in shares.values())


def test_one_client_gets_the_very_message_of_the_step() -> None:
    clients = Clients(FakeRouter(b"one"))  # type: ignore[arg-type]
    clients.receive()
    step = EngineOutputs(1, [], SchedulerStats())
    [(_, message)] = clients.share(step)
    assert message is step


def test_an_engine_has_one_owner_whoever_else_greets_like_one() -> None:
    router = FakeRouter(b"one", b"two")
    for greeting in router.greetings:
        greeting.append(b"how to start")
    clients = Clients(router)  # type: ignore[arg-type]
    owner = clients.receive()
    other = clients.receive()
    assert owner is not None and other is not None
    assert (owner[0].number, owner[1]) == (0, [b"how to start"])
    assert (other[0].number, other[1]) == (1, [])
    assert clients.find(0) is owner[0]
