"""A form that no backend honours is answered with 400, keyword and place, on every way that asks for one."""

from collections.abc import Iterator
from typing import Any

import pytest

from core.api.config import PluginChoices, ResolvedPlugin
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import make_tokenizer
from tests.apis.test_tool_calls import HI, QWEN, function

NAMES = ("llguidance", "xgrammar")
CONTAINS: dict[str, Any] = {"type": "array", "contains": {"const": 5}}
NOT: dict[str, Any] = {"type": "object", "properties": {"a/b": {"not": {"type": "string"}}}}
REMOTE: dict[str, Any] = {"type": "array", "items": {"$ref": "http://127.0.0.1:1/x.json"}}
LOOSE: dict[str, Any] = {"type": "object", "properties": {"ab": {"type": "string"}}, "required": ["ab"]}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    table = [ResolvedPlugin(kind="grammar", name=name, target=f"core_grammars.{name}.manifest") for name in NAMES]
    plugins = PluginChoices(loader="dummy", platform="cpu", grammars=NAMES, table=tuple(table))
    config = ServerConfig(uvicorn_log_level="warning")
    with run_server(config, plugins=plugins, tokenizer=make_tokenizer(QWEN), max_model_len=1024) as running:
        yield running


def response_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (response_format(CONTAINS), ["`contains`", "#/contains"]),
        ({"structured_outputs": {"json": NOT}}, ["`not`", "#/properties/a~1b/not"]),
        ({"guided_json": REMOTE}, ["`$ref`", "#/items/$ref", "http://127.0.0.1:1/x.json"]),
        ({"guided_regex": "(?=a)a"}, ["no look-around"]),
        ({"structured_outputs": {"json": CONTAINS, "backend": "xgrammar", "disable_fallback": True}}, ["xgrammar: "]),
    ],
)
def test_keyword_and_place_are_named(server: RunningServer, fields: dict[str, Any], words: list[str]) -> None:
    answer = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 4, **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == next(iter(fields))
    assert all(word in error["message"] for word in words), error["message"]


def test_a_strict_tool_is_judged_as_well(server: RunningServer) -> None:
    tool = function(parameters={**NOT, "additionalProperties": False}, strict=True)
    answer = server.http.post("/v1/chat/completions", json={"messages": HI, "tools": [tool], "max_tokens": 4})
    assert answer.status_code == 400
    assert "#/properties/a~1b/not" in answer.json()["error"]["message"]


def test_a_form_that_is_honoured_is_served(server: RunningServer) -> None:
    answer = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 4, **response_format(LOOSE)})
    assert answer.status_code == 200
