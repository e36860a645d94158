"""GET /get_world_size counts the processes that hold weights."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from core_config.resolve import resolve
from core_config.served.server_config import ServerConfig


def test_ranks_and_engines_are_counted(start_server: Callable[..., Any]) -> None:
    with start_server(ServerConfig(num_ranks=4, num_engines=3)) as server:
        for query, count in (("", 12), ("?include_dp=true", 12), ("?include_dp=false", 4)):
            assert httpx.get(f"{server.url}/get_world_size{query}").json() == {"world_size": count}
        assert httpx.get(f"{server.url}/get_world_size?include_dp=maybe").status_code == 400


@pytest.mark.parametrize(("settings", "ranks", "engines"), [({}, 1, 1), ({"tensor_parallel_size": 2}, 2, 1)])
def test_a_server_knows_its_ranks(tiny_llama: Any, settings: dict[str, int], ranks: int, engines: int) -> None:
    server = resolve({"model": str(tiny_llama), **settings}, context="serve", environ={}).server
    assert (server.num_ranks, server.num_engines) == (ranks, engines)
