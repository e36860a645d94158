"""The field `session` and /v1/sessions over HTTP: exact tokens, forks, rewinds, keys, limits."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from core_apis.protocol.sampling import NAME_WORDS
from core_config.served.server_config import ServerConfig
from core_formats.server_limits import ServerLimits
from core_frontend.sessions.turns import CONTROL
from tests.apis.conftest import RunningServer, run_server
from tests.sessions.merging import ANSWER, LettersClient, letters, merging_tokenizer

KEYS = ("first-key", "second-key")
TOKENIZER = merging_tokenizer()
ASKED = {"role": "user", "content": "What rolls?"}
SAMPLED = letters(TOKENIZER, ANSWER.strip())
TOKENIZED = TOKENIZER.encode(ANSWER.strip(), add_special_tokens=False)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    limits = ServerLimits(max_sessions_per_key=4)
    config = ServerConfig(api_keys=KEYS, limits=limits)
    with run_server(config, tokenizer=TOKENIZER, make_client=LettersClient, max_model_len=1024) as running:
        yield running


@pytest.fixture(autouse=True)
def no_sessions(server: RunningServer) -> Iterator[None]:
    yield
    for key in KEYS:
        for session in call(server, "GET", "/v1/sessions", key=key).json()["data"]:
            call(server, "DELETE", f"/v1/sessions/{session['id']}", key=key)


def call(server: RunningServer, method: str, path: str, key: str = KEYS[0], **more: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}", **more.pop("headers", {})}
    return server.http.request(method, path, headers=headers, **more)


def history(*asked: str, system: str = "") -> list[dict[str, str]]:
    """A conversation whose answers came from the model."""
    messages = [ASKED]
    for text in asked:
        messages += [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": text}]
    return messages


def chat(
    server: RunningServer, session: str | None, *asked: str, key: str = KEYS[0], headers: Any = None, **fields: Any
) -> dict[str, Any]:
    body = {"messages": history(*asked), "session": session, "explain": True, **fields}
    answer = call(server, "POST", "/v1/chat/completions", key, json=body, headers=headers or {})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def seen(server: RunningServer) -> list[int]:
    """The prompt that the engine got last."""
    assert isinstance(server.fake, LettersClient)
    return server.fake.seen[-1]


def has(ids: list[int], part: list[int]) -> bool:
    return any(ids[at : at + len(part)] == part for at in range(len(ids)))


def turns(server: RunningServer, session: str, key: str = KEYS[0]) -> int:
    return len(call(server, "GET", f"/v1/sessions/{session}", key).json()["turns"])


def test_sampled_ids_are_kept_in_a_session_alone(server: RunningServer) -> None:
    assert SAMPLED != TOKENIZED
    chat(server, "mine")
    told = chat(server, "mine", "Why?")["explain"]["session"]
    assert has(seen(server), SAMPLED) and not has(seen(server), TOKENIZED)
    assert told["name"] == "mine" and told["turns"] == 1 and told["note"] is None
    assert told["kept_tokens"] >= len(SAMPLED)
    assert chat(server, None, "Why?")["explain"]["session"] is None
    assert has(seen(server), TOKENIZED)
    chat(server, None, "Why?", "How?", headers={"X-Session": "mine"})
    assert seen(server).count(SAMPLED[1]) > 3 and not has(seen(server), TOKENIZED)
    shown = call(server, "GET", "/v1/sessions/mine").json()
    assert len(shown["turns"]) == 3 and shown["turns"][2]["kept_tokens"] > shown["turns"][1]["kept_tokens"] > 0
    assert shown["tokens"] == shown["turns"][2]["prompt_tokens"] + shown["turns"][2]["answer_tokens"]


def test_contents_that_spell_control_tokens_stay_text(server: RunningServer) -> None:
    chat(server, "spelled")
    told = chat(server, "spelled", "What is <|im_end|>?")["explain"]["session"]
    assert told["kept_tokens"] == 0 and told["note"] == CONTROL
    assert has(seen(server), TOKENIZED)


def test_the_other_apis_and_completions(server: RunningServer) -> None:
    body: dict[str, Any] = {"messages": [ASKED], "max_tokens": 400, "session": "messages", "stream": True}
    assert call(server, "POST", "/v1/messages", json=body).status_code == 200
    assert call(server, "POST", "/v1/messages", json={**body, "messages": history("Why?")}).status_code == 200
    assert has(seen(server), SAMPLED) and turns(server, "messages") == 2

    given: dict[str, Any] = {"input": [ASKED], "store": False, "session": "responses"}
    assert call(server, "POST", "/v1/responses", json=given).status_code == 200
    again = {**given, "input": history("Why?")}
    assert call(server, "POST", "/v1/responses", json=again).status_code == 200
    assert has(seen(server), SAMPLED) and turns(server, "responses") == 2

    text: dict[str, Any] = {"model": "fake-model", "prompt": "Go", "session": "text", "max_tokens": 40}
    assert call(server, "POST", "/v1/completions", json=text).status_code == 200
    assert call(server, "POST", "/v1/completions", json={**text, "prompt": f"Go{ANSWER} on"}).status_code == 200
    assert has(seen(server), SAMPLED) and turns(server, "text") == 2


def test_a_fork_while_an_answer_streams(server: RunningServer) -> None:
    chat(server, "trunk")
    body = {"messages": history("GO"), "session": "trunk", "stream": True}
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    fake = server.fake
    assert isinstance(fake, LettersClient)
    with server.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert call(server, "GET", "/v1/sessions/trunk").json()["running"] == 1
        forked = call(server, "POST", "/v1/sessions/trunk/fork", json={"name": "branch"})
        assert forked.status_code == 200 and len(forked.json()["turns"]) == 1
        server.loop.call_soon_threadsafe(fake.go.set)
        assert [line for line in lines][-2:] == ["data: [DONE]", ""]
    assert (turns(server, "trunk"), turns(server, "branch")) == (2, 1)
    chat(server, "branch", "Another way?")
    assert has(seen(server), SAMPLED)
    taken = call(server, "POST", "/v1/sessions/trunk/fork", json={"name": "branch"})
    assert taken.status_code == 409 and taken.json()["error"]["code"] == "session_exists"


def test_rewind(server: RunningServer) -> None:
    for asked in ((), ("Why?",), ("Why?", "How?")):
        chat(server, "back", *asked)
    assert len(call(server, "POST", "/v1/sessions/back/rewind", json={"turn": 1}).json()["turns"]) == 1
    told = chat(server, "back", "Who?")["explain"]["session"]
    assert told["turns"] == 1 and has(seen(server), SAMPLED)
    far = call(server, "POST", "/v1/sessions/back/rewind", json={"turn": 7})
    assert far.status_code == 400 and far.json()["error"]["param"] == "turn"


def test_keys_do_not_see_each_other(server: RunningServer) -> None:
    chat(server, "same")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/fork"), ("POST", "/rewind")):
        body = {"/fork": {"name": "x"}, "/rewind": {"turn": 0}}.get(path)
        answer = call(server, method, f"/v1/sessions/same{path}", KEYS[1], json=body)
        assert answer.status_code == 404, answer.text
    told = chat(server, "same", "Why?", key=KEYS[1])["explain"]["session"]
    assert told["turns"] == 0 and told["kept_tokens"] == 0
    assert has(seen(server), TOKENIZED)
    assert turns(server, "same") == turns(server, "same", KEYS[1]) == 1


def test_limits_and_what_is_refused(server: RunningServer) -> None:
    for name in "abcd":
        chat(server, name)
    body: dict[str, Any] = {"messages": [ASKED], "session": "e"}
    full = call(server, "POST", "/v1/chat/completions", json=body)
    assert full.status_code == 409 and full.json()["error"]["code"] == "too_many_sessions"
    assert call(server, "POST", "/v1/sessions/a/fork", json={"name": "e"}).status_code == 409
    assert call(server, "DELETE", "/v1/sessions/a").json() == {"id": "a", "deleted": True, "object": "session"}
    assert call(server, "POST", "/v1/chat/completions", json=body).status_code == 200
    for more in ({"n": 2}, {"truncate_prompt_tokens": 5}, {"session": "no/name"}):
        answer = call(server, "POST", "/v1/chat/completions", json={**body, **more})
        assert answer.status_code == 400 and "session" in answer.json()["error"]["param"], answer.text
    ids = {"model": "fake-model", "prompt": [5, 6], "session": "e"}
    assert "no text" in call(server, "POST", "/v1/completions", json=ids).json()["error"]["message"]
    named = call(server, "POST", "/v1/chat/completions", json={"messages": [ASKED]}, headers={"X-Session": "a b"})
    assert named.status_code == 400 and "X-Session" in named.text


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_clients_take_out_of_a_path_is_refused(server: RunningServer, name: str) -> None:
    both: list[dict[str, Any]] = [{"json": {"messages": [ASKED], "session": name}}, {"headers": {"X-Session": name}}]
    for more in both:
        answer = call(server, "POST", "/v1/chat/completions", **{"json": {"messages": [ASKED]}, **more})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "session", answer.text
    chat(server, "a")
    assert call(server, "POST", "/v1/sessions/a/fork", json={"name": name}).status_code == 400
    assert chat(server, "...")


@pytest.mark.parametrize("value", ["no/name", "", 3, ["a"], "x" * 129, "new\n"])
def test_a_bad_name_is_told_in_words(server: RunningServer, value: Any) -> None:
    chat(server, "a")
    shown = json.dumps(value)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [ASKED], "session": value},
        "/v1/completions": {"prompt": "Go", "session": value},
        "/v1/messages": {"messages": [ASKED], "max_tokens": 4, "session": value},
        "/v1/responses": {"input": [ASKED], "session": value},
        "/v1/sessions/a/fork": {"name": value},
    }
    for path, body in bodies.items():
        answer = call(server, "POST", path, json={"model": "fake-model", **body} if "fork" not in path else body)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        field = "name" if "fork" in path else "session"
        assert error["message"] == f"{field} is {shown}; expected {NAME_WORDS}; choose such a name for the session."
    turn = call(server, "POST", "/v1/sessions/a/rewind", json={"turn": "first"}).json()["error"]["message"]
    assert turn == 'turn is "first"; expected the number of turns that stay, a whole number from 0.'


@pytest.mark.parametrize(
    ("method", "path", "more", "names"),
    [
        ("POST", "/pin", {"json": {"seconds": 60}}, "seconds"),
        ("POST", "/pin?seconds=60", {}, "seconds"),
        ("DELETE", "/pin", {"json": {"at": 1}}, "at"),
        ("DELETE", "?force=true", {}, "force"),
        ("GET", "?turns=1", {}, "turns"),
        ("POST", "/rewind?turn=1", {"json": {"turn": 0}}, "turn"),
        ("POST", "/fork?name=c", {"json": {"name": "b"}}, "name"),
    ],
)
def test_what_nobody_reads_is_refused(
    server: RunningServer, method: str, path: str, more: dict[str, Any], names: str
) -> None:
    chat(server, "a")
    answer = call(server, method, f"/v1/sessions/a{path}", **more)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == names, answer.text
    assert turns(server, "a") == 1
    assert call(server, "GET", "/v1/sessions?limit=1").status_code == 400
    empty: list[dict[str, Any]] = [{}, {"json": {}}]
    for good in empty:
        assert call(server, "POST", "/v1/sessions/a/pin", **good).status_code != 400


def test_a_server_that_keeps_none_refuses_the_field() -> None:
    config = ServerConfig(limits=ServerLimits(max_sessions_per_key=0))
    with run_server(config) as running:
        answer = running.http.post("/v1/chat/completions", json={"messages": [ASKED], "session": "mine"})
    assert answer.status_code == 400
    assert "--max-sessions-per-key" in json.loads(answer.text)["error"]["message"]
