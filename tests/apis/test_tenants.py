"""Whose cached prefixes a request may use: its API key's, and what the operator made public."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from core.api.errors import UserError
from core.api.messages import EngineRequest
from core_apis.app import create_app
from core_apis.callers.tenants import tenant_name
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import make_engine

SYSTEM = "You are a patient librarian who answers in one sentence."


@contextmanager
def watched(**settings: Any) -> Iterator[tuple[RunningServer, list[EngineRequest]]]:
    seen: list[EngineRequest] = []
    with run_server(ServerConfig(**settings)) as server:
        add = server.fake.add

        async def spy(requests: Any) -> None:
            seen.extend(requests)
            await add(requests)

        server.fake.add = spy  # type: ignore[method-assign]
        yield server, seen


def chat(server: RunningServer, key: str, system: str = SYSTEM, question: str = "Why?", **more: Any) -> None:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    headers = {"authorization": f"Bearer {key}"}
    body = {"messages": messages, "max_tokens": 1} | more
    answer = server.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text


def test_each_key_is_a_tenant_and_no_keys_are_none() -> None:
    with watched(api_keys=("one", "two")) as (server, seen):
        for key in ("one", "two", "one"):
            chat(server, key, user="the same", cache_salt="the same")
        server.http.post("/v1/responses", json={"input": "Hi"}, headers={"x-api-key": "two"})
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "model": "fake-model"}
        server.http.post("/v1/messages", json=body, headers={"x-api-key": "two"})
        server.http.post("/v1/completions", json={"prompt": ["a", "b"]}, headers={"x-api-key": "one"})
    one, two, again, response, message, *completions = [request.tenant for request in seen]
    assert one == again == tenant_name("one")
    assert two == response == message == tenant_name("two") != one
    assert completions == [one, one]
    assert {request.cache_salt for request in seen[:3]} == {"the same"}
    with watched(api_keys=("alone",)) as (server, seen):
        chat(server, "alone")
    assert seen[0].tenant == tenant_name("alone")
    with watched() as (server, seen):
        chat(server, "whatever")
    assert (seen[0].tenant, seen[0].num_public_tokens) == ("", 0)


def test_a_name_tells_nothing_of_the_key_and_stays_the_same() -> None:
    # Blocks on disk are found by it after a restart.
    assert tenant_name("secret").startswith("e0c989bdb4972f7f")
    assert "secret" not in tenant_name("secret")
    assert len({tenant_name(key) for key in ("a", "A", "a ", "ä", "\udce4")}) == 5


def public_text(server: RunningServer, request: EngineRequest) -> str:
    """What a request's public tokens say."""
    return server.engine.tokenizer.decode(request.prompt_token_ids[: request.num_public_tokens])


def test_a_public_system_prompt_ends_where_the_question_begins(tmp_path: Path) -> None:
    file = tmp_path / "librarian.txt"
    file.write_text(SYSTEM)
    with watched(api_keys=("one",), public_prompts=(str(file),)) as (server, seen):
        chat(server, "one", question="Why?")
        chat(server, "one", question="a")
        chat(server, "one", SYSTEM + " Be kind.")
        chat(server, "one", "Something else.")
        headers = {"authorization": "Bearer one"}
        server.http.post("/v1/completions", json={"prompt": SYSTEM + " And"}, headers=headers)
        exact, also, longer, other, plain = [public_text(server, request) for request in seen]
    assert SYSTEM in exact and exact == also
    assert "Why" not in exact
    assert longer.endswith(SYSTEM)
    assert "Something" not in other
    assert plain.endswith(SYSTEM)


def test_a_public_chat_may_have_tools(tmp_path: Path) -> None:
    file = tmp_path / "agent.json"
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Example?"}]
    messages += [{"role": "assistant", "content": "Yes."}]
    file.write_text(json.dumps({"messages": messages}))
    with watched(api_keys=("one",), public_prompts=(str(file),)) as (server, seen):
        headers = {"authorization": "Bearer one"}
        body = {"messages": [*messages, {"role": "user", "content": "Now mine"}], "max_tokens": 1}
        assert server.http.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
        found = public_text(server, seen[0])
    assert "Yes." in found and "mine" not in found


def test_a_prompt_that_is_cut_has_no_public_beginning(tmp_path: Path) -> None:
    file = tmp_path / "librarian.txt"
    file.write_text(SYSTEM)
    with watched(api_keys=("one",), public_prompts=(str(file),)) as (server, seen):
        chat(server, "one", truncate_prompt_tokens=20)
    assert seen[0].num_public_tokens == 0


BAD = {
    "not there": (None, ".txt", "cannot be read"),
    "empty": (b" \n", ".txt", "expected a text"),
    "no text": (b"\xff\xfe", ".txt", "UTF-8"),
    "no JSON": (b"{", ".json", "no JSON"),
    "no messages": (b'{"tools": []}', ".json", "'messages'"),
    "no chat": (b'{"messages": [1]}', ".json", "no chat begins so"),
}


@pytest.mark.parametrize("name", BAD)
async def test_files_that_are_no_prompts_end_the_start_with_a_sentence(name: str, tmp_path: Path) -> None:
    data, suffix, words = BAD[name]
    file = tmp_path / f"prompt{suffix}"
    if data is not None:
        file.write_bytes(data)
    engine = make_engine()
    with pytest.raises(UserError, match=words) as caught:
        create_app(engine, ServerConfig(api_keys=("k",), public_prompts=(str(file),)), engine.model_config)
    assert f"--public-prompt {file}" in str(caught.value)
