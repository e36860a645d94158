"""`service_tier` and --default-service-tier choose the class of a request, which the engine is told and the answer shows."""

from collections.abc import Iterator
from typing import Any

import pytest

from core.api.config import EngineConfig, SchedulerConfig
from core.api.errors import RequestError
from core.api.messages import EngineRequest
from core_config.served.server_config import ServerConfig
from core_frontend.queue.limit import queue_limit
from core_tokens.tokenizer import Tokenizer
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import FakeClient

HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 8},
}


class Seeing(FakeClient):
    """seen: whether each request belonged to the batch class."""

    def __init__(self, tokenizer: Tokenizer, config: EngineConfig) -> None:
        super().__init__(tokenizer)
        self.seen: list[bool] = []

    async def run(self, request: EngineRequest) -> None:
        self.seen.append(request.flex)
        await super().run(request)


@pytest.fixture(scope="module", params=["default", "flex"])
def tiered(request: pytest.FixtureRequest) -> Iterator[tuple[RunningServer, bool]]:
    config = ServerConfig(default_service_tier=request.param, uvicorn_log_level="warning")
    with run_server(config, make_client=Seeing) as running:
        yield running, request.param == "flex"


@pytest.mark.parametrize("path", BODIES)
def test_every_api_passes_the_class_on(tiered: tuple[RunningServer, bool], path: str) -> None:
    server, is_default = tiered
    fake = server.fake
    assert isinstance(fake, Seeing)
    other = "standard_only" if "messages" in path else "default"
    for tier, expected in ((None, is_default), ("auto", is_default), ("flex", True), (other, False)):
        body = BODIES[path] if tier is None else {**BODIES[path], "service_tier": tier}
        answer = server.http.post(path, json=body)
        assert answer.status_code == 200 and fake.seen.pop() == expected, tier
        if path == "/v1/responses":
            assert answer.json()["service_tier"] == ("flex" if expected else "default")
        elif path == "/v1/chat/completions":
            assert answer.json().get("service_tier") == ("flex" if expected else None)
    refused = server.http.post(path, json={**BODIES[path], "service_tier": "fastest"})
    assert refused.status_code == 400 and "service_tier" in refused.text


def test_what_waits_in_the_batch_class_takes_no_place_of_others() -> None:
    queue = queue_limit(SchedulerConfig(max_num_queued_reqs=2, max_num_reqs_per_key=1))
    queue.enter({"a": 1, "b": 1}, flex=True)
    with pytest.raises(RequestError, match="The batch class is busy"):
        queue.enter({"c": 1}, flex=True)
    queue.enter({"d": 1, "e": 1})
    with pytest.raises(RequestError, match="The server is busy"):
        queue.enter({"f": 1})
    queue.end("a")
    queue.enter({"g": 1}, flex=True)
    for name in "bdeg":
        queue.end(name)
    queue.enter({"h": 1}, 0, flex=True)
    queue.enter({"i": 1}, 0)
    with pytest.raises(RequestError, match="This API key"):
        queue.enter({"j": 1}, 0, flex=True)
