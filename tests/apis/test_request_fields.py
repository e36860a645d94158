"""Every field of a request is used, refused by name, or listed as one that changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from core_apis.openapi import OPERATIONS
from core_apis.protocol.chat import UNSERVED
from core_apis.protocol.document import BODIES, document
from core_apis.protocol.sampling import NEUTRAL, NOT_SERVED
from tests.apis.conftest import RunningServer

PAGE = Path(__file__).parents[2] / "docs" / "requests.md"
HI = [{"role": "user", "content": "Hi"}]
ODD: dict[str, Any] = {"metadata": {"a": "b"}, "store": True}
ODD |= {"safety_identifier": "me", "prompt_cache_key": "key"}


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), (
        "run: python -m core_apis.protocol.document > docs/requests.md"
    )


def test_every_body_with_a_prompt_is_on_it() -> None:
    known = {path for body in BODIES for path in body.paths}
    small = {"/tokenize", "/detokenize", "/v1/messages/count_tokens"}
    weights = {"/init_weight_transfer_engine", "/update_weights", "/collective_rpc", "/scale_elastic_ep"}
    weights |= {"/start_weight_update", "/finish_weight_update"}
    adapters = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
    bodies = {path for path, operation in OPERATIONS.items() if operation.body is not None}
    sessions = {"/v1/sessions/{name}/fork", "/v1/sessions/{name}/rewind"}
    tokens = {"/inference/v1/generate", "/invocations", "/abort_requests", "/inference/v1/abort_requests"}
    tokens |= {f"/v1/{api}/{way}" for api in ("completions", "chat/completions") for way in ("render", "derender")}
    assert bodies == known | tokens | small | weights | adapters | sessions | {"/v1/batches"}
    for body in BODIES:
        listed = {*body.used, *body.neutral, *body.refused}
        assert listed >= set(body.struct.__struct_encode_fields__)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_fields_that_change_nothing_change_nothing(server: RunningServer, path: str) -> None:
    body: dict[str, Any] = {"messages": HI} if "chat" in path else {"prompt": "Hi"}
    plain = server.http.post(path, json=body).json()
    assert set(ODD) == set(NEUTRAL)
    odd = server.http.post(path, json={**body, **ODD}).json()
    for varying in ("id", "created"):
        plain.pop(varying)
        odd.pop(varying)
    assert odd == plain


@pytest.mark.parametrize("name", UNSERVED)
def test_fields_that_are_not_served_are_refused_by_name(server: RunningServer, name: str) -> None:
    refused = server.http.post("/v1/chat/completions", json={"messages": HI, name: {"a": 1}})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == name
    assert server.http.post("/v1/chat/completions", json={"messages": HI, name: None}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_fields_of_other_servers_are_refused_unless_they_ask_for_nothing(server: RunningServer, path: str) -> None:
    body: dict[str, Any] = {"messages": HI} if "chat" in path else {"prompt": "Hi"}
    nothing = {name: values[0] for name, (values, _) in NOT_SERVED.items()}
    assert server.http.post(path, json={**body, **nothing}).status_code == 200
    for name, (_, reason) in NOT_SERVED.items():
        refused = server.http.post(path, json={**body, name: 0.5})
        assert refused.status_code == 400, name
        told = refused.json()["error"]
        assert told["param"] == name and reason in told["message"]


def test_reasoning_without_a_limit_may_be_said(server: RunningServer) -> None:
    assert (
        server.http.post("/v1/chat/completions", json={"messages": HI, "thinking_token_budget": -1}).status_code == 200
    )
