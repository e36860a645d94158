"""The OpenAPI document, as it is served, is valid and true."""

from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from core.api.config import ProfilerConfig
from core_apis.openapi import OPERATIONS, STATUSES
from core_config.served.server_config import AdapterSettings, BatchSettings, ServerConfig
from tests.apis.conftest import RunningServer, run_server

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def document(server: RunningServer) -> dict[str, Any]:
    return server.http.get("/openapi.json").json()


@pytest.fixture(scope="module")
def whole_document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a server that has every route."""
    wanted = {"enable_server_load_tracking": True, "enable_tokenizer_info_endpoint": True}
    batches = BatchSettings(directory=str(tmp_path_factory.mktemp("batches")))
    config = ServerConfig(
        uvicorn_log_level="warning", adapters=AdapterSettings(is_updated=True), batches=batches, quotes=True, **wanted
    )
    with run_server(config, profiler=ProfilerConfig(directory="/traces"), changes=True) as running:
        return running.http.get("/openapi.json").json()


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def look_up(document: dict[str, Any], reference: str) -> Any:
    assert reference.startswith("#/")
    node: Any = document
    for step in reference.removeprefix("#/").split("/"):
        node = node[step]
    return node


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    found = set(references(document))
    assert len(found) > 20
    for reference in found:
        look_up(document, reference)


def test_every_schema_is_one(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    assert "temperature" in document["components"]["schemas"]["CompletionRequest"]["properties"]


def test_every_route_is_described_and_nothing_else(whole_document: dict[str, Any]) -> None:
    document = whole_document
    assert set(document["paths"]) == set(OPERATIONS)
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert {int(status) for operation in operations for status in operation["responses"]} == {200, *STATUSES} - {401}


def test_answers_are_as_described(server: RunningServer, document: dict[str, Any]) -> None:
    calls: list[tuple[str, str, Any, int]] = [
        ("get", "/health", None, 200),
        ("get", "/ready", None, 200),
        ("get", "/live", None, 200),
        ("post", "/ping", None, 200),
        ("get", "/version", None, 200),
        ("get", "/metrics", None, 200),
        ("get", "/v1/models", None, 200),
        ("get", "/v1/models/{name}", None, 404),
        ("post", "/v1/completions", {"prompt": "Hi", "logprobs": 2, "max_tokens": 2}, 200),
        ("post", "/v1/completions", {"prompt": 5}, 400),
        ("post", "/v1/completions", {"prompt": "Hi", "model": "x"}, 404),
        ("post", "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}, 200),
        ("post", "/v1/chat/completions", {**CHAT, "stream": True}, 200),
        ("post", "/v1/messages", {**CHAT, "max_tokens": 2}, 200),
        ("post", "/v1/messages", {**CHAT, "max_tokens": 2, "stream": True}, 200),
        ("post", "/v1/messages", CHAT, 400),
        ("post", "/v1/messages", {**CHAT, "max_tokens": 2, "model": "x"}, 404),
        ("post", "/v1/messages/count_tokens", CHAT, 200),
        ("post", "/v1/messages/count_tokens", {"messages": 5}, 400),
        ("post", "/tokenize", {"prompt": "Hi"}, 200),
        ("post", "/detokenize", {"tokens": [5]}, 200),
        ("post", "/reset_prefix_cache", None, 200),
    ]
    for method, path, body, status in calls:
        answer = server.http.request(method, path.replace("{name}", "none"), json=body)
        assert answer.status_code == status, (path, answer.text)
        described = document["paths"][path][method]["responses"][str(status)]
        if "$ref" in described:
            described = look_up(document, described["$ref"])
        if "content" not in described:
            assert answer.content == b""
            continue
        schema = described["content"][answer.headers["content-type"].partition(";")[0]]["schema"]
        if "$ref" in schema:
            jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())


def test_bodies_that_are_served_fit_their_schemas(document: dict[str, Any]) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": ["a"], "logit_bias": {"5": 1}})):
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(body)


def test_keys_are_described_where_there_are_any(start_server: Callable[..., Any], document: dict[str, Any]) -> None:
    assert "securitySchemes" not in document["components"]
    with start_server(ServerConfig(api_keys=("k",), uvicorn_log_level="warning")) as running:
        guarded = running.http.get("/openapi.json").json()
        for path, methods in guarded["paths"].items():
            for method, operation in methods.items():
                if method == "get":
                    refused = running.http.get(path).status_code == 401
                    assert ("401" in operation["responses"]) == refused == ("security" in operation)
        scheme = guarded["components"]["securitySchemes"]["ApiKey"]
        assert scheme == {"type": "http", "scheme": "bearer"}


def test_head_is_get_without_a_body(server: RunningServer) -> None:
    for path in ("/health", "/ping", "/version", "/metrics", "/v1/models", "/v1/models/alias", "/openapi.json"):
        asked, told = server.http.get(path), server.http.head(path)
        assert (told.status_code, told.content) == (200, b"")
        assert told.headers.get("content-type") == asked.headers.get("content-type")
    assert server.http.head("/v1/models/none").status_code == 404
    assert server.http.head("/v1/completions").status_code == 405
