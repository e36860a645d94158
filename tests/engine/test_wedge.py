"""Engines that hang: what counts as that, and how they end."""

import asyncio
import math
import os
import signal
from dataclasses import dataclass

import msgspec
import pytest
from fakes import HANG, TARGET, make_config

from core.api.errors import EngineDeadError
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.utilities import LONG
from core_supervision.owned_engine import start_engine
from core_supervision.watch.breadcrumbs import InUtility, LastStep
from core_supervision.watch.wedge import FACTOR, UNKNOWN_S, UTILITY_S, WedgeWatch


@dataclass
class Stub:
    """A process and its voice."""

    step: LastStep | None = None
    silence_s: float = 0.0
    wedge: str | None = None
    num_pings: int = 0
    inside: InUtility | None = None
    for_others: bool = False

    def utility(self) -> InUtility | None:
        return self.inside

    def last_step(self) -> LastStep | None:
        return self.step

    def abort(self) -> None: ...

    def kill(self) -> None: ...

    def ping(self) -> None:
        self.num_pings += 1


def step(number: int = 1, *, predicted_s: float = 0.1, computing: bool = True) -> LastStep:
    return LastStep(0, number, 1.0, 0.5, predicted_s, computing, (4,))


def looks_until_wedge(stub: Stub, floor_s: float = 10.0, most: int = 2000) -> int | None:
    watch = WedgeWatch(stub, stub, floor_s)
    for number in range(most):
        if watch.look(1.0) is not None:
            return number
    return None


@pytest.mark.parametrize(
    ("stub", "limit"),
    [
        (Stub(step()), 10),
        (Stub(step(predicted_s=3.0)), int(3 * FACTOR)),
        (Stub(step(predicted_s=math.inf)), int(UNKNOWN_S)),
        (Stub(step(computing=False)), None),
        (Stub(step(computing=False), silence_s=99.0), 10),
        (Stub(None, silence_s=99.0), 9),
        (Stub(None), None),
    ],
)
def test_a_wedge_is_no_progress_for_longer_than_expected(stub: Stub, limit: int | None) -> None:
    assert looks_until_wedge(stub) == limit


def test_progress_begins_the_count_anew() -> None:
    stub = Stub(step())
    watch = WedgeWatch(stub, stub, 10.0)
    for number in range(100):
        stub.step = step(number // 9)
        assert watch.look(1.0) is None
    stub.step = step(50)
    assert [watch.look(1.0) for _ in range(10)] == [None] * 10
    stub.step = step(50, computing=False)
    stub.silence_s = 400.0  # a long step has ended, and what it gave is on its way
    assert watch.look(1.0) is None


def test_an_engine_without_news_is_asked_before_it_is_judged() -> None:
    stub = Stub(step(computing=False), silence_s=7.0)
    watch = WedgeWatch(stub, stub, 10.0)
    assert not any(watch.look(1.0) for _ in range(30))
    assert stub.num_pings > 0


@pytest.mark.parametrize("name", sorted(LONG))
def test_a_call_that_takes_long_has_a_limit_of_its_own(name: str) -> None:
    stub = Stub(step(computing=False), silence_s=1e6, inside=InUtility(1, name, 0.0))
    assert looks_until_wedge(stub) == int(UTILITY_S)
    watch = WedgeWatch(stub, stub, 10.0, 60.0)
    sentences = [watch.look(1.0) for _ in range(61)]
    assert not any(sentences[:60])
    assert sentences[60] == f"the call {name} has lasted for 60.0 s (--engine-utility-timeout)"
    watch = WedgeWatch(stub, stub, 10.0, 0.0)
    assert not any(watch.look(1.0) for _ in range(5000))


def test_a_call_that_hangs_although_it_is_short_is_found_as_before() -> None:
    stub = Stub(step(computing=False), silence_s=99.0, inside=InUtility(1, "check_params", 0.0))
    assert looks_until_wedge(stub) == 10


@pytest.mark.parametrize(
    ("name", "holds_steps", "begin_s", "limit"),
    [
        ("update_weights", True, 2.0, int(UTILITY_S)),  # the step's result is asked for after the call
        ("update_weights", False, 2.0, 10),  # a thread of its own computes the step, and the call waits for it
        ("update_weights", True, 0.5, 10),  # the step began within the call
        ("check_params", True, 2.0, 10),
    ],
)
def test_a_step_that_a_long_call_holds_up_has_the_time_of_the_call(
    name: str, holds_steps: bool, begin_s: float, limit: int
) -> None:
    stub = Stub(step(), silence_s=1e6, inside=InUtility(1, name, begin_s, holds_steps))
    assert looks_until_wedge(stub) == limit


def test_a_step_that_hangs_after_a_long_call_is_noticed() -> None:
    stub = Stub(step(), silence_s=1e6, inside=InUtility(1, "update_weights", 2.0, holds_steps=True))
    watch = WedgeWatch(stub, stub, 10.0)
    assert not any(watch.look(1.0) for _ in range(500))
    stub.inside = None
    assert not any(watch.look(1.0) for _ in range(10))
    assert "a step of 1 sequences" in (watch.look(1.0) or "")


def test_each_call_has_its_time_and_what_follows_too() -> None:
    stub = Stub(step(computing=False), silence_s=1e6, inside=InUtility(1, "sleep", 0.0))
    watch = WedgeWatch(stub, stub, 10.0, 60.0)
    for number in (1, 3, 5):
        stub.inside = InUtility(number, "sleep", 0.0)
        assert not any(watch.look(1.0) for _ in range(60))
    stub.inside = None
    assert not any(watch.look(1.0) for _ in range(10))
    assert watch.look(1.0) is not None


@pytest.mark.parametrize("for_others", [False, True])
def test_the_owner_asks_for_clients_that_it_knows_nothing_of(for_others: bool) -> None:
    """An engine of several API processes, or of a remote API server, that hangs between two steps."""
    stub = Stub(step(computing=False), for_others=for_others)

    def ping() -> None:
        stub.num_pings += 1
        stub.silence_s = 1e6  # no answer comes

    stub.ping = ping  # type: ignore[method-assign]
    assert looks_until_wedge(stub) == (14 if for_others else None)
    stub = Stub(step(computing=False), for_others=for_others)
    assert looks_until_wedge(stub) is None, "an engine that answers lives"
    assert (stub.num_pings > 100) is for_others


@pytest.mark.parametrize("stopped", [False, True], ids=["hangs", "stopped"])
def test_an_engine_that_hangs_is_killed_and_says_where(stopped: bool, capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> EngineDeadError:
        config = msgspec.structs.replace(make_config(), wedge_timeout_s=0.5)
        client = await start_engine(config, executor=TARGET)
        died = asyncio.Event()
        client.listen(lambda outputs: None, lambda error: died.set())
        for number in range(20):  # so that it is known how long steps take
            await client.add([EngineRequest(f"r{number}", 0, [1], SamplingParams(max_tokens=2), seed=0)])
            while client.silence_s:
                await asyncio.sleep(0.001)
        bad = EngineRequest("bad", 0, [HANG], SamplingParams(max_tokens=2), seed=0)
        if stopped:
            os.kill(client.pid, signal.SIGSTOP)
            bad = EngineRequest("late", 0, [1], SamplingParams(max_tokens=2), seed=0)
        await client.add([bad])
        await asyncio.wait_for(died.wait(), 20)
        await client.close()
        assert client.dead_error is not None
        assert client.dead_error.suspects == (() if stopped else (bad.handle,))
        return client.dead_error

    error = asyncio.run(run())
    assert error.cause == "wedge"
    assert "killed because it hung" in str(error)
    log = capfd.readouterr().err
    assert "Fatal Python error: Aborted" in log
    if not stopped:
        assert "in _advance" in log
