"""Calls that take long: who hears of them, what counts as a hang meanwhile, and what a failure in them ends."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from engine.mortal import MortalSource, mortal_engine
from fakes import FakeExecutor, make_config

from core.api.errors import EngineDeadError, EngineStalledError, RequestError, UtilityError
from core.api.messages import EngineOutputs
from core.api.stats import SchedulerStats
from core_supervision.child import EngineProcess
from core_supervision.control import EngineControl
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.owned_engine import start_engine
from core_supervision.watch.wedge import WedgeWatch
from core_tokens.tokenizer import Tokenizer


class Listener:
    """A client, and what it hears."""

    def __init__(self, client: ZmqClient) -> None:
        self.client = client
        self.stats = SchedulerStats()
        self.death: EngineDeadError | None = None
        client.listen(self._take, self._die)

    def _take(self, message: EngineOutputs) -> None:
        self.stats = message.stats

    def _die(self, error: EngineDeadError) -> None:
        self.death = error

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.005)


async def test_a_long_call_is_told_and_is_no_hang(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def use(process: EngineProcess, owner: Listener, guest: Listener) -> None:
        sleeping = asyncio.create_task(owner.client.call("sleep"))
        await guest.until(lambda: guest.stats.utility == "sleep")
        assert owner.stats.utility == "sleep"
        await guest.until(process.utility)
        silent = SimpleNamespace(silence_s=1e6, for_others=True, ping=lambda: None)
        watch = WedgeWatch(process, silent, 10.0)
        assert not any(watch.look(1.0) for _ in range(500))
        late = asyncio.create_task(ZmqClient.connect(owner.client.address, timeout_s=None))
        gate.touch()
        assert (await sleeping)["is_sleeping"]
        await guest.until(lambda: guest.stats.sleep_level == 1 and not guest.stats.utility)
        assert process.utility() is None
        await (await late).close()
        await owner.client.call("wake_up")

        update = {"update": {"path": "x", "frees_first": True}}
        with pytest.raises(EngineDeadError, match="Neither the new weights"):
            await owner.client.call("update_weights", update)
        for listener in (guest, owner):
            await listener.until(lambda listener=listener: listener.death)
        assert owner.death is not None and owner.death.cause == "failure"

    config = msgspec.structs.replace(make_config(options={"gate": str(gate)}), sleeps=True)
    process = EngineProcess.spawn("engine.sleeping:GatedExecutor")
    owner = Listener(await start_engine(config, process=process))
    guest = Listener(await ZmqClient.connect(owner.client.address))
    try:
        await use(process, owner, guest)
    finally:
        for listener in (guest, owner):
            listener.client.abandon()


class Scripted:
    """A client whose calls answer as told, one after the other, and are noted."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.calls: list[str] = []
        self.is_gone = False

    async def call(self, method: str, arguments: object = None) -> object:
        self.calls.append(method)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def state(hold: str) -> dict[str, object]:
    return {
        "hold": hold,
        "weight_version": "",
        "sleep_level": 0,
        "is_paused": True,
        "state": "draining",
        "reported_holders": [],
    }


def controlled(client: Scripted) -> EngineControl:
    def live() -> Scripted:
        if client.is_gone:
            raise EngineDeadError("It is gone for good.")
        return client

    return EngineControl(live, lambda seconds: asyncio.sleep(0))


async def test_a_call_that_waits_lets_go_however_it_ends() -> None:
    went_well = Scripted(state("drains"), state("drains"), state("reached"), state("reached"), state(""))
    await controlled(went_well).sleep(1, "wait")
    assert went_well.calls == ["pause", "lifecycle", "lifecycle", "sleep", "let_go"]

    resumed = Scripted(state("drains"), state("ended"), state(""))
    with pytest.raises(RequestError, match="ended before") as raised:
        await controlled(resumed).pause("wait")
    assert raised.value.status == 409
    assert resumed.calls[-1] == "let_go"

    refused = Scripted(UtilityError("Requests are held."), state(""))
    with pytest.raises(RequestError, match="are held"):
        await controlled(refused).pause("wait")
    assert refused.calls == ["pause", "let_go"]

    died = Scripted(state("drains"), EngineDeadError("killed"), EngineDeadError("killed"))
    with pytest.raises(EngineStalledError, match="died during lifecycle and is being started again"):
        await controlled(died).sleep(1, "wait")
    died.answers = [EngineDeadError("killed")]
    died.is_gone = True
    with pytest.raises(EngineDeadError, match="for good"):
        await controlled(died).sleep(1)

    endless = Scripted(*[state("drains")] * 1000)
    waiting = asyncio.create_task(controlled(endless).pause("wait"))
    while len(endless.calls) < 5:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert endless.calls[-1] == "let_go"


async def test_health_allows_a_long_call_its_time(tokenizer: Tokenizer) -> None:
    config = make_config(stall_timeout_s=60.0)
    config = msgspec.structs.replace(config, utility_timeout_s=600.0)
    source = MortalSource(config, FakeExecutor)
    engine = mortal_engine(source, tokenizer)
    try:
        source.clients[0].silence_s = 500.0
        engine.stats.utility = "wake_up"
        await engine.check_health()
        source.clients[0].silence_s = 700.0
        with pytest.raises(EngineStalledError, match="said nothing for 700 s"):
            await engine.check_health()
        source.clients[0].silence_s = 500.0
        engine.stats.utility = ""
        with pytest.raises(EngineStalledError, match="said nothing for 500 s"):
            await engine.check_health()
    finally:
        await engine.close()
