"""`core kv audit --url`: the cached tokens that a server reports."""

import asyncio
import json

import pytest

from core.api.errors import UserError
from core.commands.main import main
from core_commands.client.http_endpoint import HttpEndpoint
from core_commands.kv.asking import ask_cached
from core_commands.kv.log_file import Logged
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import run_server
from tests.apis.test_explain import BLOCK_SIZE, ScheduledClient

QUESTION = {"role": "user", "content": "Where does it rain, and for how long will it do so?"}
LATER = [QUESTION, {"role": "assistant", "content": "In Paris."}, {"role": "user", "content": "Why?"}]


def logged(messages, path="/v1/chat/completions", **fields):
    """A logged request."""
    return Logged(1, path, {"model": "fake-model", "messages": messages, "stream": True, "max_tokens": 100, **fields})


def test_cached_tokens_of_each_request():
    with run_server(ServerConfig(enable_prompt_tokens_details=True), make_client=ScheduledClient) as server:
        log = [logged([QUESTION]), logged(LATER), logged(LATER, "/v1/messages"), logged(LATER, temperature=-1.0)]
        first, second, third, refused = asyncio.run(ask_cached(HttpEndpoint(server.url), log))
    assert first == 0 and second >= BLOCK_SIZE and third >= second
    assert refused is None


def test_a_server_that_reports_none():
    with run_server(make_client=ScheduledClient) as server, pytest.raises(UserError, match="prompt-tokens-details"):
        asyncio.run(ask_cached(HttpEndpoint(server.url), [logged([QUESTION])]))


def test_the_table_has_a_column_for_it(tmp_path, capsys):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in ([QUESTION], LATER)))
    with run_server(ServerConfig(enable_prompt_tokens_details=True), make_client=ScheduledClient) as server:
        assert main(["kv", "audit", str(path), "--url", server.url, "--json"]) == 0
    turns = json.loads(capsys.readouterr().out)["turns"]
    assert [turn["cause"] for turn in turns] == ["first_seen", "extends"]
    assert turns[0]["cached"] == 0 and turns[1]["cached"] >= BLOCK_SIZE
    assert main(["kv", "audit", str(path), "--url", "http://127.0.0.1:9"]) == 2
    assert "no connection" in capsys.readouterr().err
