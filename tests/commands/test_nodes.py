"""`core nodes check`: every pair of machines, and who is at fault."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from core.api.errors import UserError
from core_commands.cli.nodes import nodes_answer, nodes_check
from core_commands.nodes.answering import Facts, Reached, answer, facts_of
from core_commands.nodes.checking import HERE, Pair, check, culprits
from core_config.served.server_config import RemoteSettings
from tests.apis.serving_processes import free_port


def key(path: Path, text: str) -> str:
    path.write_text(text * 40)
    path.chmod(0o600)
    return str(path)


def settings(port: int, key_file: str | None, address: str = "127.0.0.1") -> RemoteSettings:
    return RemoteSettings(role="api_server", address=address, port=port, key_file=key_file)


@asynccontextmanager
async def answering(*machines: tuple[RemoteSettings, Facts]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(answer(own, facts)) for own, facts in machines]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_machines_reach_each_other_and_one_that_does_not_answer_is_named(
    tmp_path: Path, tiny_llama: Path
) -> None:
    secret, facts = key(tmp_path / "key", "a"), facts_of(str(tiny_llama))
    port = free_port()
    first, second = (settings(port, secret, address) for address in ("127.0.0.1", "127.0.0.2"))
    nodes = [("127.0.0.1", port), ("127.0.0.2", port)]
    async with answering((first, facts), (second, facts)):
        pairs = await check(settings(port, secret), nodes)
        assert [(pair.source, pair.target) for pair in pairs] == [
            (HERE, f"127.0.0.1:{port}"),
            (HERE, f"127.0.0.2:{port}"),
            (f"127.0.0.1:{port}", f"127.0.0.2:{port}"),
            (f"127.0.0.2:{port}", f"127.0.0.1:{port}"),
        ]
        assert not any(pair.reached.problem for pair in pairs) and culprits(pairs) == []
        assert pairs[0].reached.interface == "lo (127.0.0.1)" and pairs[0].reached.mib_s > 0

        (found,) = culprits(await check(settings(port, secret), [*nodes, ("127.0.0.3", port)]))
        assert found.startswith(f"127.0.0.3:{port} is reached by none of 3: nothing listens there")
        (found,) = culprits(await check(settings(port, key(tmp_path / "other", "b")), nodes[:1]))
        assert "is reached by none of 1: the other end" in found and "--engine-key-file" in found


def pair(source: str, host: str, problem: str = "", rate: float = 100.0, **other: str) -> Pair:
    values = {"name": host, "core": "1", "torch": "2", "python": "3", "byteorder": "little", "weights": "w"} | other
    return Pair(source, Reached(host, 1, problem, "eth0", 1.0, rate, None if problem else Facts(**values)))


def test_the_culprit_is_the_machine_that_differs() -> None:
    good = [pair(HERE, host) for host in "abc"]
    assert culprits(good) == []
    assert culprits([*good[:2], pair(HERE, "c", weights="x")]) == ["c:1 differs in weights: x; the others have w."]
    (both,) = culprits([good[0], pair(HERE, "b", core="2")])
    assert both == "The machines differ in core: a:1 1, b:1 2."
    (one_way,) = culprits([*good, pair("a:1", "b", "no answer"), pair("c:1", "b")])
    assert one_way == "b:1 is reached by others, but not from a:1: no answer."
    rates = {"a": 100.0, "b": 110.0, "c": 3.0}
    slow = [pair(f"{source}:1", host, rate=rate) for host, rate in rates.items() for source in "abc" if source != host]
    assert culprits(slow) == ["c:1 is slow: 3 MiB/s at most, 100 between the others."]


def test_what_is_wrong_on_the_command_line_is_named() -> None:
    with pytest.raises(UserError, match=r"--address 10.0.0.1: other machines reach it"):
        nodes_answer(["--address", "10.0.0.1"])
    with pytest.raises(UserError, match="a machine is missing"):
        nodes_check([])
    with pytest.raises(UserError, match="expected HOST or HOST:PORT"):
        nodes_check(["a:b"])
