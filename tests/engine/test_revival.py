"""Whether and when dead engines are started again, with real processes where it is about those."""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
from fakes import CRASH, HANG, TARGET, make_config, make_resolution, reference

from core.api.config import RestartConfig
from core.api.errors import EngineDeadError
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core_frontend.async_engine import AsyncEngine
from core_supervision import revival
from core_supervision.child import EngineProcess
from core_supervision.degraded_config import SPARE_BLOCKS
from core_supervision.revival import OwnedEngineSource, Reviver


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def delays(terms: RestartConfig, lives: list[float]) -> list[float | None]:
    """Of engines that live for these seconds, each after the one before. None for one that does not even come up."""
    clock = Clock()
    reviver = Reviver(terms, clock)
    found: list[float | None] = []
    for seconds in lives:
        if seconds:
            reviver.came_up()
        clock.now += seconds
        found.append(reviver.delay())
    return found


def test_the_wait_grows_in_a_row_and_a_calm_life_ends_the_row() -> None:
    terms = RestartConfig(limit=100, backoff_s=0.5)
    assert delays(terms, [9.0, 0.1, 0.1, 0.0, 9.0, 4.0, 0.0]) == [0.0, 0.5, 1.0, 2.0, 0.0, 0.5, 1.0]
    assert delays(terms, [0.1] * 40)[-1] == 30.0


def test_the_limit_counts_what_lies_in_the_window() -> None:
    terms = RestartConfig(limit=2, window_s=100.0, backoff_s=0.0)
    assert delays(terms, [60.0] * 5) == [0.0] * 5
    assert delays(terms, [40.0, 40.0, 40.0]) == [0.0, 0.0, None]
    assert delays(RestartConfig(limit=0), [9.0]) == [None]


def test_deaths_that_are_explained_do_not_count() -> None:
    reviver = Reviver(RestartConfig(limit=2, window_s=100.0, backoff_s=0.5), Clock())
    for _ in range(20):
        assert reviver.delay() == 0.0
        assert reviver.delay() == 0.5
        assert reviver.delay(num_explained=3) == 0.0, "a new row begins"
    for _ in range(2):
        assert reviver.delay() is not None
    assert reviver.delay() is None


async def answer(engine: AsyncEngine, prompt: list[int], name: str, max_tokens: int = 30) -> Any:
    """The tokens, or the reason why there are no more."""
    params = SamplingParams(max_tokens=max_tokens, output_kind=RequestOutputKind.FINAL_ONLY)
    async for output in engine.generate(prompt, params, name):
        last = output.outputs[0]
    return last.stop_reason if last.finish_reason == "error" else last.token_ids


def run_engine(test: Any, restarts: RestartConfig, wedge_timeout_s: float = 0.0, **options: Any) -> None:
    async def run() -> None:
        config = make_config(options={"delay_s": 0.005, **options}, restarts=restarts)
        resolution = make_resolution(msgspec.structs.replace(config, wedge_timeout_s=wedge_timeout_s))
        engine = await AsyncEngine.start(resolution, executor=TARGET)
        try:
            async with asyncio.timeout(40):
                await test(engine)
        finally:
            await engine.close()

    asyncio.run(run())


def open_files() -> Counter[str]:
    """What the open files of this process are, so that a failure names the file that was left."""
    found: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists the folder is closed again
            found[os.readlink(entry).partition(":[")[0]] += 1
    return found


def test_a_request_that_crashes_processes_ends_alone() -> None:
    async def test(engine: AsyncEngine) -> None:
        files = open_files()
        prompts = [[CRASH, 1], [2, 3], [4, 5]]
        asked = [answer(engine, prompt, f"r{prompt[0]}") for prompt in prompts]
        reason, *others = await asyncio.gather(*asked)
        assert "alone at last (cause: crash)" in reason
        assert others == [reference(prompt, 30) for prompt in prompts[1:]]
        assert engine.restarts.num_restarts["crash"] <= 4
        for _ in range(100):  # whatever is closed late
            if sum(open_files().values()) <= sum(files.values()):
                break
            await asyncio.sleep(0.05)
        now = open_files()
        assert sum(now.values()) <= sum(files.values()), f"new: {now - files}, gone: {files - now}"

    run_engine(test, RestartConfig(backoff_s=0.0))


@pytest.mark.slow
def test_a_request_in_which_engines_hang_ends_alone() -> None:
    async def test(engine: AsyncEngine) -> None:
        for number in range(10):  # so that it is known how long steps take
            await answer(engine, [number], f"w{number}", 2)
        prompts = [[HANG, 1], [2, 3], [4, 5]]
        asked = [answer(engine, prompt, f"r{prompt[0]}") for prompt in prompts]
        reason, *others = await asyncio.gather(*asked)
        assert "alone at last (cause: wedge)" in reason
        assert others == [reference(prompt, 30) for prompt in prompts[1:]]

    run_engine(test, RestartConfig(backoff_s=0.0), wedge_timeout_s=0.4)


def test_too_many_deaths_are_the_end() -> None:
    async def test(engine: AsyncEngine) -> None:
        stream = engine.generate([1], SamplingParams(max_tokens=60), "a")
        await anext(stream)
        first = engine.pid
        os.kill(first, signal.SIGKILL)
        for _ in range(3):
            await anext(stream)
        while engine.pid == first:
            await anext(stream)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=r"(?s)SIGKILL.*more than 1 times within 60 s .--engine-restarts"):
            async for _ in stream:
                pass
        assert not engine.is_running

    run_engine(test, RestartConfig(limit=1, window_s=60.0))


def test_after_a_lack_of_memory_fewer_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[int, int | None]] = []

    async def start(config: Any, *, process: EngineProcess, epoch: int) -> Any:
        process.discard()
        started.append((config.scheduler.max_num_seqs, config.cache.num_blocks))
        if len(started) == 3:
            raise OSError("Cannot allocate memory")
        return SimpleNamespace(ready=SimpleNamespace(num_blocks=config.cache.num_blocks or 64))

    async def run() -> None:
        config = make_config(restarts=RestartConfig(limit=4, backoff_s=0.0))
        source = OwnedEngineSource(config, executor=TARGET)
        await source.first()
        await source.next(EngineDeadError("", cause="out_of_memory"))
        await source.next(EngineDeadError("", cause="out_of_memory"))
        await source.next(EngineDeadError("", cause="crash"))
        with pytest.raises(EngineDeadError, match="more than 4 times"):
            await source.next(EngineDeadError("", cause="crash"))

    monkeypatch.setattr(revival, "start_engine", start)
    asyncio.run(run())
    least = 64 // 4 + 1 + SPARE_BLOCKS  # for a sequence of 64 tokens and the one behind it
    assert started == [(8, None), (4, 32), (2, least), (2, least), (2, least)]


def test_a_server_that_ends_during_the_start_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def test(engine: AsyncEngine) -> None:
        stream = engine.generate([1], SamplingParams(max_tokens=60), "a")
        await anext(stream)
        os.kill(engine.pid, signal.SIGKILL)
        while engine.restarts.paused_since is None:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.2)  # the next process exists by now
        await engine.close()
        assert list(tmp_path.iterdir()) == []

    run_engine(test, RestartConfig(), start_s=0.3)


def test_an_engine_that_is_started_again_has_the_priority_of_the_first() -> None:
    async def test(engine: AsyncEngine) -> None:
        stream = engine.generate([1], SamplingParams(max_tokens=60), "a")
        await anext(stream)
        before = psutil.Process(engine.pid).nice()
        os.nice(1)  # of this thread alone
        first = engine.pid
        os.kill(first, signal.SIGKILL)
        while engine.pid == first:
            await anext(stream)
        assert psutil.Process(engine.pid).nice() == before

    with ThreadPoolExecutor(1) as other:
        other.submit(run_engine, test, RestartConfig()).result()
