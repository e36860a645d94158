"""Requests that move between the engines of a group with their pages, which real sockets carry: what the group sees of it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from fakes import TARGET, make_config, make_resolution, reference

from core.api.config import EngineConfig, RestartConfig
from core.api.errors import UserError
from core.api.sampling_params import SamplingParams
from core.kv.fingerprint import fingerprint
from core.scheduler.step_cost import StepCost, StepWork
from core_frontend.async_engine import AsyncEngine
from core_frontend.group import moves as moves_module
from core_frontend.group.comparison import Comparison, compare, lengths_of
from core_frontend.group.member_config import member_config
from core_frontend.quote.link import Link
from core_frontend.request_terms import ExplainTerms, RequestTerms
from tests.apis.serving_processes import free_ports
from tests.group.roles import with_role
from tests.group.test_drains import moves_of
from tests.group.test_group import client_of, states, until

PROMPTS = [[number, *range(2, 30)] for number in range(100, 104)]
PARAMS = SamplingParams(max_tokens=100, ignore_eos=True)
FASTER = Comparison(2.0, 0.25)


def config_with_pages(**options: Any) -> EngineConfig:
    """Of two engines that hand requests over, at two ports."""
    config = make_config(
        options={"delay_s": 0.005, "num_blocks": 400, **options},
        max_model_len=256,
        restarts=RestartConfig(backoff_s=0.05),
    )
    return msgspec.structs.replace(with_role(config, free_ports(2)), data_parallel_size=2)


@asynccontextmanager
async def group(**options: Any) -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(make_resolution(config_with_pages(**options)), executor=TARGET)
    try:
        async with asyncio.timeout(40):
            yield engine
    finally:
        await engine.close()


@pytest.fixture(autouse=True)
def moving_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves_module, "compare", lambda *facts, **more: FASTER)


async def spread(engine: AsyncEngine, n: int = 1) -> list[asyncio.Task[Any]]:
    """Requests of which each engine runs two, after some tokens."""

    async def ask(prompt: list[int]) -> Any:
        terms = RequestTerms(explain=ExplainTerms())
        params = msgspec.structs.replace(PARAMS, n=n)
        async for output in engine.generate({"prompt_token_ids": prompt}, params, str(prompt[0]), terms):
            last = output
        return last

    tasks = [asyncio.create_task(ask(prompt)) for prompt in PROMPTS]
    states_of_all = engine._live.states
    await until(lambda: len(states_of_all) == len(PROMPTS))
    await until(lambda: all(min(state.num_given().values(), default=0) > 8 for state in states_of_all))
    await until(lambda: [each.num_running for each in engine.engines] == [2 * n, 2 * n])
    return tasks


async def ended(tasks: list[asyncio.Task[Any]], n: int = 1) -> list[Any]:
    """The last outputs, all of which have the right tokens."""
    outputs = await asyncio.gather(*tasks)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert [list(one.token_ids) for one in output.outputs] == [reference(prompt, 100)] * n
    return outputs


async def counts(engine: AsyncEngine, index: int) -> dict[str, int]:
    found: dict[str, int] = await client_of(engine).members[index].client.call("kv_handoffs")
    return found


async def nothing_is_left(engine: AsyncEngine) -> None:
    for member in client_of(engine).members:
        for _ in range(400):
            left = await counts(engine, member.index)
            if not any(left.get(name) for name in ("leases", "leased_pages", "claims", "buffered_bytes", "waiting")):
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError(f"engine {member.index} keeps {left}")
        await member.client.call("check_integrity")


@pytest.mark.parametrize("n", [1, 2])
async def test_pages_go_along(n: int) -> None:
    async with group() as engine:
        tasks = await spread(engine, n)
        drained = await moves_of(engine).drain(1)
        assert (drained.moved, drained.computed, drained.stayed) == (2, 0, 0)
        assert states(engine) == ["running", "drained"]
        outputs = await ended(tasks, n)
        there, here = await counts(engine, 1), await counts(engine, 0)
        assert there["lease.issued"] == there["lease.released"] == here["claim.received"] == 2
        assert there["lease.pages_sent"] == here["claim.pages_received"] >= 2 * (7 + n)
        assert moves_of(engine).counts["moved"] == 2
        told = [output.explain.moves for output in outputs]
        assert sorted(map(len, told)) == [0, 0, 1, 1]
        (move,) = next(filter(None, told))
        assert (move.how, move.source, move.target) == ("moved", 1, 0) and move.tokens > 8 * n
        assert (move.computing, move.moving) == (2.0, 0.25) and "foretold to be faster" in move.why
        await nothing_is_left(engine)


async def test_there_and_back_again() -> None:
    async with group() as engine:
        tasks = await spread(engine)
        for index in (1, 0, 1):
            assert (await moves_of(engine).drain(index)).stayed == 0
            await moves_of(engine).undrain(index)
        outputs = await ended(tasks)
        assert max(len(output.explain.moves) for output in outputs) >= 2
        await nothing_is_left(engine)


async def test_an_engine_that_comes_back_gets_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    async with group() as engine:
        tasks = await spread(engine)
        moves = moves_of(engine)
        await moves.drain(1)
        await moves.undrain(1)
        group_client = client_of(engine)

        def placed() -> list[int]:
            return [len(group_client.requests_at(member)) for member in group_client.members]

        assert placed() == [4, 0]
        monkeypatch.setattr(moves_module, "compare", lambda *facts, **more: Comparison(0.1, 0.2))
        assert (await moves.rebalance()).stayed == 2 and placed() == [4, 0], "computing them again is no gain"
        monkeypatch.setattr(moves_module, "compare", lambda *facts, **more: FASTER)
        assert (await moves.rebalance()).moved == 2 and placed() == [2, 2]
        assert (await moves.rebalance()).moved == 0
        await ended(tasks)
        await nothing_is_left(engine)


@pytest.mark.parametrize("when", ["hand_over_kv", "claim_kv", "after"])
@pytest.mark.parametrize("victim", [0, 1])
async def test_a_death_at_any_call(when: str, victim: int) -> None:
    async with group() as engine:
        tasks = await spread(engine)
        members = client_of(engine).members
        pid = members[victim].client.pid

        def killing(index: int) -> None:
            client = members[index].client
            whole = client.call

            async def call(method: str, arguments: Any = None) -> Any:
                answer = await whole(method, arguments)
                if method == when:
                    os.kill(pid, signal.SIGKILL)
                return answer

            client.call = call  # type: ignore[method-assign]

        for index in range(2):
            killing(index)
        drained = await moves_of(engine).drain(1)
        if when == "after":
            os.kill(pid, signal.SIGKILL)
        await ended(tasks)
        assert drained.stayed <= 2
        await until(lambda: states(engine)[0] == "running" and states(engine)[1] != "restarting")
        await nothing_is_left(engine)


async def test_clients_that_leave_while_their_requests_move() -> None:
    async with group() as engine:
        for when in ("hand_over_kv", "claim_kv", "sent"):
            tasks = await spread(engine)
            members = client_of(engine).members
            gone = client_of(engine).requests_at(members[1])
            originals = [(member.client, member.client.call) for member in members]

            def leaving(client: Any, whole: Any, when: str = when) -> None:
                async def call(method: str, arguments: Any = None) -> Any:
                    answer = await whole(method, arguments)
                    if method == when:
                        await engine.abort(arguments["request_id"])
                    return answer

                client.call = call

            for client, whole in originals:
                leaving(client, whole)
            drained = await moves_of(engine).drain(1)
            for client, whole in originals:
                client.call = whole
            for name in gone:
                await engine.abort(name)
            assert drained.moved == (2 if when == "sent" else 0)
            outputs = await asyncio.gather(*tasks)
            for prompt, output in zip(PROMPTS, outputs, strict=True):
                expected = reference(prompt, 100)
                (answer,) = output.outputs
                assert answer.token_ids == expected[: len(answer.token_ids)]
                assert (answer.finish_reason == "abort") is (str(prompt[0]) in gone)
            await moves_of(engine).undrain(1)
            await nothing_is_left(engine)


async def test_what_an_engine_does_not_hand_over_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with group() as engine:
        moves = moves_of(engine)
        tasks = await spread(engine)
        second = client_of(engine).members[1].client
        whole = second.call

        async def without(method: str, arguments: Any = None) -> Any:
            answer = await whole(method, arguments)
            return None if method == "hand_over_kv" else answer

        second.call = without  # type: ignore[method-assign]
        assert (await moves.drain(1)).computed == 2 and moves.counts["no_ticket"] == 2
        outputs = await ended(tasks)
        assert {move.how for output in outputs for move in output.explain.moves} == {"computed"}
        second.call = whole  # type: ignore[method-assign]
        await nothing_of_leases(engine)


async def nothing_of_leases(engine: AsyncEngine) -> None:
    """Drop the leases whose tickets a test has lost."""
    for member in client_of(engine).members:
        await member.client.call("reset_prefix_cache", {"reset_running_requests": True})
    await nothing_is_left(engine)


async def test_a_defect_of_a_move_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with group() as engine:
        tasks = await spread(engine)

        async def broken(*arguments: Any) -> str:
            raise ZeroDivisionError

        monkeypatch.setattr(moves_of(engine), "_claim", broken)
        assert (await moves_of(engine).drain(1)).computed == 2
        await ended(tasks)


async def test_a_caller_that_goes_away_does_not_end_the_drain() -> None:
    async with group() as engine:
        tasks = await spread(engine)
        caller = asyncio.create_task(moves_of(engine).drain(1))
        await asyncio.sleep(0.01)
        caller.cancel()
        assert (await moves_of(engine).drain(1)).stayed == 0
        await ended(tasks)
        assert moves_of(engine).counts["moved"] == 2


async def test_without_a_group_nothing_is_drained() -> None:
    config = msgspec.structs.replace(config_with_pages(), data_parallel_size=1)
    with pytest.raises(UserError, match="there is no engine to take pages from"):
        await AsyncEngine.start(make_resolution(config), executor=TARGET)


def test_each_engine_has_a_port_and_the_others_for_peers() -> None:
    config = msgspec.structs.replace(config_with_pages(), data_parallel_size=3)
    port = int(config.plugins.arguments["kv_connector.tcp"]["listen"].rpartition(":")[2])
    found = [member_config(config, rank).plugins.arguments["kv_connector.tcp"] for rank in range(3)]
    places = [f"127.0.0.1:{port + rank}" for rank in range(3)]
    assert [own["listen"] for own in found] == places
    assert [own["peers"] for own in found] == [places[1:], [places[0], places[2]], places[:2]]
    elsewhere = ("10.0.0.2:14579",)
    config = msgspec.structs.replace(with_role(make_config(), port, elsewhere), data_parallel_size=2)
    found = [member_config(config, rank).plugins.arguments["kv_connector.tcp"] for rank in range(2)]
    assert [own["peers"] for own in found] == [[places[1], *elsewhere], [places[0], *elsewhere]]


def test_engines_with_other_threads_have_the_same_pages() -> None:
    config = config_with_pages()
    prints = set()
    for threads, binding in ((2, "none"), (1, "0")):
        own = {"platform.cpu": {"threads": threads, "thread_binding": binding}}
        plugins = msgspec.structs.replace(config.plugins, arguments=config.plugins.arguments | own)
        prints.add(fingerprint(msgspec.structs.replace(config, plugins=plugins), "numerics"))
    assert len(prints) == 1


def learned() -> list[float]:
    """What an engine has learned that takes 1 ms a prompt token, 10 ms a step and little for each key."""
    cost = StepCost()
    for round_ in range(3000):
        tokens, decodes = (16 + 37 * round_ % 480, 0) if round_ % 2 else (0, 1 + round_ % 8)
        work = StepWork(tokens, decodes, 100 * decodes, tokens * tokens // 2)
        cost.observe(work, 0.01 + 0.001 * tokens + 0.0001 * decodes)
    return list(cost.state())


def test_the_comparison_knows_both_sides() -> None:
    link = Link(lambda: 0.0)
    facts: dict[str, Any] = {"cost": learned(), "bytes": [10_000_000, 12_000_000, 13_000_000]}
    assert lengths_of(1000, [200, 300]) == [1000, 1200, 1300]
    found = compare(facts, 1000, [200, 300], link, budget=512, block_size=16)
    assert found.compute_s == pytest.approx(1.5 + 3 * 0.01, rel=0.2), "1,500 tokens in three steps"
    assert found.move_s == pytest.approx(0.015 + 0.032 + 0.01, rel=0.3), "15 MB at 1 GB/s, and two open blocks"
    assert found.moves
    for _ in range(50):
        link.observe(1_000_000, 1.0)
    slow = compare(facts, 1000, [200, 300], link, budget=512, block_size=16)
    assert not slow.moves and slow.compute_s == found.compute_s and "computing it again" in slow.reason
    unknown = compare({"cost": None, "bytes": [1, 1]}, 1000, [200], link, budget=512, block_size=16)
    assert not unknown.moves and "too little" in unknown.reason
