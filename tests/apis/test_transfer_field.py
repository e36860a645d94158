"""The field `kv_transfer_params` before the engine: what is asked for, who may ask it, and what the engine is told."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from core.api.config import CacheConfig, EngineConfig, ModelConfig, PluginChoices, SchedulerConfig
from core.api.errors import EngineDeadError, RequestError
from core_apis.protocol.transfer_params import TransferParams
from core_apis.transfer import check_transfer, with_transfer
from core_frontend.api.outputs import RequestOutput
from core_frontend.kv_transfer import KVTransfer
from core_frontend.request_terms import RequestTerms
from tests.apis.conftest import RunningServer
from tests.apis.router_requests import ROUTERS, to_decode, to_prefill

DECODE, PREFILL = {"do_remote_decode": True}, {"do_remote_prefill": True}
SOURCE = {"host": "h", "port": 1, "ticket": "t", "engine_id": "p"}

SOURCE_FIELDS = {"remote_block_ids": ["t"], "remote_host": "h", "remote_port": 1, "remote_engine_id": "p"}


class StubEngine:
    """An engine that writes down its calls. lease: what it leases. dies: whether it cannot answer."""

    def __init__(self, role: str = "", lease: Any = None, *, dies: bool = False) -> None:
        arguments = {"kv_connector.tcp": {"role": role}} if role else {}
        plugins = PluginChoices(loader="dummy", platform="cpu", arguments=arguments)
        cache = CacheConfig(enable_prefix_caching=True)
        self.config = EngineConfig(
            model=ModelConfig(model="m", served_names=("m",)), cache=cache, plugins=plugins, scheduler=SchedulerConfig()
        )
        self.control = self
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._lease, self._dies = lease, dies

    async def call(self, method: str, **arguments: Any) -> Any:
        self.calls.append((method, arguments))
        if self._dies:
            raise EngineDeadError("gone")
        return self._lease if method == "lease_kv" else ""


def asked(role: str, params: dict[str, Any], **body: Any) -> None:
    """Check a prepared request."""
    given = {"stream": False, "kv_transfer_params": msgspec.convert(params, TransferParams), **body}
    runs = SimpleNamespace(
        body=SimpleNamespace(**given), params=SimpleNamespace(max_tokens=body.get("max_tokens", 1)), prompts=[1]
    )
    check_transfer(StubEngine(role), runs)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_server_without_a_role_refuses_the_field_unless_it_asks_for_nothing(server: RunningServer, path: str) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "Hi"}
    for nothing in ({}, None, {"do_remote_decode": False, "do_remote_prefill": None}):
        assert server.http.post(path, json={**body, "kv_transfer_params": nothing}).status_code == 200
    for something in (DECODE, PREFILL, {"do_remote": True}, {"do_remote_decode": 3}, "yes"):
        refused = server.http.post(path, json={**body, "max_tokens": 1, "kv_transfer_params": something})
        assert refused.status_code == 400 and "kv_transfer_params" in refused.json()["error"]["message"]


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_requests_of_other_routers_lack_nothing_but_the_role(server: RunningServer, path: str, router: str) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "Hi"}
    body |= {"max_tokens": 5, "min_tokens": 2, "stream": True}
    body["stream_options"] = {"include_usage": True}
    body |= {"max_completion_tokens": 5} if "chat" in path else {}
    asked = to_prefill(router, body)
    answer = {"kv_transfer_params": {**PREFILL, **SOURCE_FIELDS}}
    for sent in (asked, to_decode(router, body, answer, "h")):
        refused = server.http.post(path, json=sent, headers={"X-Request-Id": "5c0b"})
        assert refused.status_code == 400 and "kv_role" in refused.json()["error"]["message"], refused.text
        plain = {name: value for name, value in sent.items() if name != "kv_transfer_params"}
        assert server.http.post(path, json=plain, headers={"X-Request-Id": "5c0b"}).status_code == 200


def test_roles_decide_who_may_ask() -> None:
    for role, params in (("kv_producer", DECODE), ("kv_consumer", PREFILL), ("kv_both", DECODE), ("kv_both", PREFILL)):
        asked(role, params)
    for role, params in (
        ("", DECODE),
        ("kv_consumer", DECODE),
        ("kv_producer", PREFILL),
        ("kv_both", DECODE | PREFILL),
    ):
        with pytest.raises(RequestError, match="kv_transfer_params"):
            asked(role, params)
    with pytest.raises(RequestError, match="needs max_tokens 1"):
        asked("kv_both", DECODE, max_tokens=2)
    with pytest.raises(RequestError, match="needs stream to be false"):
        asked("kv_both", DECODE, stream=True)


@pytest.mark.parametrize(
    ("ids", "ticket"),
    [(["t"], "t"), ([["t"]], ""), ([1, 2], ""), (["t", "u"], ""), ([], ""), (None, ""), (["t" * 2000], "")],
)
def test_what_is_no_ticket_is_a_ticket_of_no_engine(ids: Any, ticket: str) -> None:
    params = {**PREFILL, "remote_block_ids": ids, "remote_host": "h", "remote_port": 1, "remote_engine_id": "p"}
    found = msgspec.convert(params, TransferParams).asked()
    assert found is not None and found.source == {**SOURCE, "ticket": ticket}


def run(engine: StubEngine, transfer: KVTransfer | None, *, fails: bool = False) -> RequestOutput:
    """Run a request through the wrapper."""

    async def generate(call: Any) -> Any:
        engine.calls.append(("run", {}))
        if fails:
            raise RequestError("no")
        yield RequestOutput("r", None, [1], [], True)

    async def main() -> RequestOutput:
        call = SimpleNamespace(
            terms=RequestTerms(tenant="whose", transfer=transfer), request_id="r", entry=SimpleNamespace(id="shown")
        )
        outputs = [output async for output in with_transfer(generate, engine)(call)]  # type: ignore[arg-type]
        return outputs[-1]

    return asyncio.run(main())


def test_the_engine_is_told_before_and_after() -> None:
    engine = StubEngine(lease=SOURCE)
    told = run(engine, KVTransfer(leases=True)).kv_transfer_params
    assert [name for name, _ in engine.calls] == ["watch_kv", "run", "lease_kv", "end_kv"]
    assert told is not None and told["do_remote_prefill"] and told["remote_request_id"] == "shown"
    again = msgspec.convert(told, TransferParams).asked()
    assert again == KVTransfer(source=SOURCE), "what an answer has is what the next request needs"
    engine = StubEngine()
    assert run(engine, again).kv_transfer_params is None
    assert engine.calls[0] == ("claim_kv", {"request_id": "r", "source": SOURCE, "tenant": "whose"})
    assert [name for name, _ in engine.calls] == ["claim_kv", "run", "end_kv"]
    engine = StubEngine()
    run(engine, None)
    assert [name for name, _ in engine.calls] == ["run"]


def test_a_request_that_fails_leaves_nothing_and_a_dead_engine_costs_no_answer() -> None:
    engine = StubEngine()
    with pytest.raises(RequestError):
        run(engine, KVTransfer(source=SOURCE), fails=True)
    assert engine.calls[-1][0] == "end_kv"
    assert run(StubEngine(dies=True), KVTransfer(leases=True)).kv_transfer_params is None
