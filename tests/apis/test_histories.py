"""`explain` tells what changed in a history, over a real scheduler and KV cache."""

from collections.abc import Iterator
from typing import Any

import pytest

from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import TEMPLATE
from tests.apis.test_explain import ScheduledClient

DAYS = TEMPLATE.replace("m['content'] +", "m['content'] + (day if loop.first and day is defined else '') +")
KEYS = ("first-key", "second-key")
ASKED = {"role": "user", "content": "Where does it rain?"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server(ServerConfig(chat_template=DAYS, api_keys=KEYS), make_client=ScheduledClient) as running:
        yield running


def miss(server: RunningServer, messages: list[dict[str, Any]], key: str = KEYS[0], **fields: Any) -> dict[str, Any]:
    """The first miss of a chat."""
    body = {"model": "fake-model", "messages": messages, "max_tokens": 4, "explain": True, **fields}
    answer = server.http.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["explain"]["cache"]["first_miss"]
    return found


def history(*texts: str) -> list[dict[str, Any]]:
    """A conversation whose answers have these texts."""
    messages = [ASKED]
    for text in texts:
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
    return messages


def test_words_of_the_template_that_differ(server: RunningServer) -> None:
    messages = history("It rains in Bordeaux.")
    miss(server, messages, chat_template_kwargs={"day": " On Sunday."})
    found = miss(server, messages, chat_template_kwargs={"day": " On Monday."})
    assert found["cause"] == "template_rewrote", found
    assert found["change"]["after"].startswith("Monday.") and "chat_template_kwargs" in found["change"]["advice"]


def test_a_stream_and_the_other_apis_hear_of_it_too(server: RunningServer) -> None:
    miss(server, history("It rains in Marseilles, in the south."))
    messages = history("It rains in Grenoble, in the south.")
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    body = {"messages": messages, "max_tokens": 4, "explain": True}
    whole = server.http.post("/v1/messages", json=body, headers=headers).json()
    assert whole["explain"]["cache"]["first_miss"]["change"]["message"] == 1
    miss(server, history("It rains in Toulouse, in the south."))
    answer = server.http.post("/v1/chat/completions", json={**body, "stream": True}, headers=headers).text
    assert '"cause":"last_block"' in answer or '"message":1' in answer


def test_a_message_that_the_client_changed(server: RunningServer) -> None:
    miss(server, history("It rains in Paris, which lies in France."))
    found = miss(server, history("It rains in Lyons, which lies in France."))
    assert found["cause"] == "history_changed"
    change = found["change"]
    assert (change["message"], change["role"], change["field"], change["character"]) == (1, "assistant", "content", 12)
    assert change["before"].endswith("It rains in ") and change["after"].startswith("Lyons")
    assert change["advice"].startswith("Send earlier messages exactly")


def test_other_keys_hear_nothing_of_it(server: RunningServer) -> None:
    mine = history("Only the first key has sent this sentence.")
    miss(server, mine)
    found = miss(server, history("Only the first key has sent other words."), key=KEYS[1])
    assert found["cause"] == "first_seen" and found["change"] is None
    salted = miss(server, history("Only the first key has sent other words."), cache_salt="salt")
    assert salted["cause"] == "first_seen" and salted["change"] is None
