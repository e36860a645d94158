"""`core kv audit` of a journal: the chats that a server has accepted, rendered as it rendered them."""

import json
from pathlib import Path

import httpx
import pytest

from core.commands.main import main
from core_config.served.server_config import JournalSettings, ServerConfig
from tests.apis.conftest import RunningServer, run_server
from tests.apis.test_explain import ScheduledClient

QUESTION = {"role": "user", "content": "Where does it rain, and for how long will it do so?"}
TURN = [{"role": "assistant", "content": "In Paris."}, {"role": "user", "content": "Why?"}]
OTHER = {"role": "user", "content": "Where does it snow, and for how long will it do so?"}


def stream(server: RunningServer, messages: list[dict[str, str]], key: str) -> None:
    body = {"model": "fake-model", "messages": messages, "stream": True, "max_tokens": 5}
    answer = server.http.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n"), answer.text


def journal_of(path: Path) -> str:
    directory = path / "journal"
    config = ServerConfig(journal=JournalSettings(directory=str(directory)), api_keys=("one", "two"))
    with run_server(config) as server:
        for messages, key in (
            ([QUESTION], "one"),
            ([QUESTION, *TURN], "one"),
            ([OTHER, *TURN, *TURN], "one"),
            ([QUESTION, *TURN], "two"),
        ):
            stream(server, messages, key)
        text = {"model": "fake-model", "prompt": "no chat", "stream": True, "max_tokens": 5}
        assert server.http.post("/v1/completions", json=text, headers={"Authorization": "Bearer one"}).is_success
    return str(directory)


def test_a_journal_is_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = journal_of(tmp_path)
    assert main(["kv", "audit", name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first, second, third, foreign = found["turns"]
    assert (first["cause"], second["cause"], third["cause"]) == ("first_seen", "extends", "history_changed")
    assert third["change"]["message"] == 0 and found["again"] == third["again"] > 0
    assert foreign["cause"] == "first_seen", "another key's prompts are another tenant's"
    assert main(["kv", "audit", name, "--most", "0"]) == 1
    assert main(["kv", "audit", name, "--most", str(found["again"])]) == 0
    with run_server(ServerConfig(enable_prompt_tokens_details=True), make_client=ScheduledClient) as server:
        capsys.readouterr()
        assert main(["kv", "audit", name, "--url", server.url, "--json"]) == 0
        cached = [turn["cached"] for turn in json.loads(capsys.readouterr().out)["turns"]]
        assert cached[0] == 0 < cached[1]
        assert httpx.get(f"{server.url}/health").is_success


def test_a_directory_without_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", "audit", str(tmp_path)]) == 2
    assert "expected that of --request-journal" in capsys.readouterr().err
