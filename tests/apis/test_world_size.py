"""GET /get_world_size counts the processes that hold weights."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from core.api.errors import RequestError
from core_apis.routes import weights
from core_config.resolve import resolve
from core_config.served.server_config import ServerConfig
from core_frontend.group.member import EngineState


async def test_ranks_and_engines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SimpleNamespace(engines=[])
    context = SimpleNamespace(server=ServerConfig(num_ranks=4, num_engines=3), engine=engine)
    monkeypatch.setattr(weights, "context_of", lambda request: context)
    app = FastAPI()
    app.include_router(weights.router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as http:
        for query, count in (("", 12), ("?include_dp=true", 12), ("?include_dp=false", 4)):
            assert (await http.get(f"/get_world_size{query}")).json() == {"world_size": count}
        places = ("running", "running", "restarting", "drained", "starting", "ended")
        engine.engines = [EngineState(index, state, 0, 0) for index, state in enumerate(places)]
        assert (await http.get("/get_world_size")).json() == {"world_size": 16}, "the server has grown"
        engine.engines = engine.engines[:2]
        assert (await http.get("/get_world_size")).json() == {"world_size": 12}, "others are behind other addresses"
        with pytest.raises(RequestError, match="expected true or false"):
            await http.get("/get_world_size?include_dp=maybe")


@pytest.mark.parametrize(("settings", "ranks", "engines"), [({}, 1, 1), ({"tensor_parallel_size": 2}, 2, 1)])
def test_a_server_knows_its_ranks(tiny_llama: Any, settings: dict[str, int], ranks: int, engines: int) -> None:
    server = resolve({"model": str(tiny_llama), **settings}, context="serve", environ={}).server
    assert (server.num_ranks, server.num_engines) == (ranks, engines)
