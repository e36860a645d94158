"""Requests rendered to token ids, token ids continued, and token ids read back: together they are the whole answer."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import ANSWERS, answer_ids, make_tokenizer

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60}
IDS = answer_ids(make_tokenizer(), 0)


def post(server: RunningServer, path: str, body: Any, status: int = 200) -> Any:
    answer = server.http.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_chat_in_three_parts_is_the_chat(server: RunningServer) -> None:
    asked = {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 1, "stop": ["The end", "b c"]}
    whole = post(server, "/v1/chat/completions", asked)
    rendered = post(server, "/v1/chat/completions/render", asked)
    assert rendered["sampling_params"]["stop"] == ["The end", "b c"]
    generated = post(server, "/inference/v1/generate", rendered)
    assert generated["request_id"] == rendered["request_id"]
    assert "text" not in generated["choices"][0]
    read = post(server, "/v1/chat/completions/derender", {"generate_response": generated, "chat_request": asked})
    assert read["choices"] == whole["choices"] and read["usage"] == whole["usage"]
    assert read["choices"][0]["message"]["content"] == "Hello, wörld 🙂! "


def test_completions_in_three_parts_are_the_completions(server: RunningServer) -> None:
    asked = {"prompt": ["Hi", [7, 8]], "max_tokens": 9, "n": 2, "echo": True}
    whole = post(server, "/v1/completions", asked)
    rendered = post(server, "/v1/completions/render", asked)
    assert [len(entry["token_ids"]) for entry in rendered] == [3, 2]
    generated = [post(server, "/inference/v1/generate", entry) for entry in rendered]
    read = post(
        server,
        "/v1/completions/derender",
        {"generate_responses": generated, "completion_request": asked},
    )
    assert read["choices"] == whole["choices"]


def test_token_ids_are_continued(server: RunningServer) -> None:
    body = {"token_ids": [5, 6], "sampling_params": {"logprobs": 1}, "request_id": "mine", "return_token_ids": True}
    answer = post(server, "/inference/v1/generate", body)
    (choice,) = answer["choices"]
    assert (answer["request_id"], answer["prompt_token_ids"]) == ("mine", [5, 6])
    assert (choice["token_ids"], choice["finish_reason"]) == (IDS, "stop")  # as many as the context leaves, not 16
    assert choice["logprobs"]["content"][0]["token_id"] == IDS[0]
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
    with_text = post(server, "/inference/v1/generate", {**body, "output_mode": "text"})
    assert with_text["choices"][0]["text"] == ANSWERS[0]


def test_token_ids_are_streamed(server: RunningServer) -> None:
    body = {"token_ids": [5, 6], "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    answer = server.http.post("/inference/v1/generate", json=body)
    rows = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [token for row in rows for choice in row["choices"] for token in choice["token_ids"]] == IDS
    assert [row.get("prompt_token_ids") for row in rows if row["choices"]][:2] == [[5, 6], None]
    assert rows[-1]["usage"]["completion_tokens"] == len(IDS)
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.fixture(scope="module")
def textless() -> Iterator[RunningServer]:
    with run_server(ServerConfig(uvicorn_log_level="warning"), texts=False) as running:
        yield running


def test_a_server_without_texts_continues_token_ids(textless: RunningServer) -> None:
    assert post(textless, "/inference/v1/generate", {"token_ids": [5, 6]})["choices"][0]["token_ids"] == IDS
    refused = post(textless, "/inference/v1/generate", {"token_ids": [5], "output_mode": "text"}, 400)
    assert "tokenizer" in refused["error"]["message"]
    post(textless, "/v1/chat/completions/render", CHAT, 400)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/inference/v1/generate", {"token_ids": []}, "at least one token"),
        ("/inference/v1/generate", {"token_ids": [-1]}, "token_ids"),
        ("/inference/v1/generate", {"token_ids": [999999]}, "vocabulary"),
        ("/inference/v1/generate", {"token_ids": [5] * 500}, "500 tokens"),
        ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"heat": 1}}, "heat"),
        ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"temperature": -1}}, "temperature"),
        ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"stop": ["x"] * 99999}}, "max-list-length"),
        ("/inference/v1/generate", {"token_ids": [5], "features": {"mm_hashes": {}}}, "features is not served"),
        ("/inference/v1/generate", {"token_ids": [5], "kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ("/v1/chat/completions/derender", {"generate_response": {"choices": []}}, "chat_request"),
        (
            "/v1/chat/completions/derender",
            {"generate_response": {"choices": []}, "chat_request": CHAT},
            "expected 0 to 0",
        ),
        (
            "/v1/chat/completions/derender",
            {"generate_response": {"choices": [{"index": 0, "token_ids": [99999]}]}, "chat_request": CHAT},
            "outside the vocabulary",
        ),
        (
            "/v1/completions/derender",
            {
                "generate_responses": [{"choices": [{"index": 0, "token_ids": [5]}]}],
                "completion_request": {"prompt": ["a", "b"]},
            },
            "one for each prompt",
        ),
        ("/invocations", {"what": 1}, "no kind that is served here"),
        ("/invocations", [], "not understood"),
    ],
)
def test_bad_bodies_are_refused_in_a_sentence(server: RunningServer, path: str, body: Any, words: str) -> None:
    assert words in post(server, path, body, 400)["error"]["message"]


def test_a_body_without_a_path_is_answered_by_its_kind(server: RunningServer) -> None:
    chat = post(server, "/invocations", CHAT)
    assert chat["choices"][0]["message"]["content"] == ANSWERS[0]
    completion = post(server, "/invocations", {"prompt": "Hi", "max_tokens": 60})
    assert completion["choices"][0]["text"] == ANSWERS[0]
    assert post(server, "/invocations", {"token_ids": [5, 6]})["choices"][0]["token_ids"] == IDS
    streamed = server.http.post("/invocations", json={**CHAT, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream") and "[DONE]" in streamed.text
    refused = post(server, "/invocations", {"input": "a text"}, 400)
    assert refused == post(server, "/v1/embeddings", {"input": "a text"}, 400)
    large = {"prompt": "x" * (3 << 20)}
    assert post(server, "/invocations", large, 400) == post(server, "/v1/completions", large, 400)


def test_paths_of_others_say_what_to_use(server: RunningServer) -> None:
    for path, words in (("/v1/moderations", "/classify"), ("/scale_elastic_ep", "--enable-elastic-ep")):
        assert words in post(server, path, {}, 404)["error"]["message"]


def test_requests_are_ended_by_name(server: RunningServer) -> None:
    stuck = {"prompt": "STUCK", "stream": True, "max_tokens": 60}
    headers = {"x-request-id": "one-of-mine"}
    with server.http.stream("POST", "/v1/completions", json=stuck, headers=headers) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert post(server, "/abort_requests", {"request_ids": ["other"]}) == {"status": "aborted", "aborted": 0}
        assert post(server, "/abort_requests", {"request_ids": ["one-of-mine"]}) == {"status": "aborted", "aborted": 1}
        assert '"finish_reason":"abort"' in "".join(lines)
    server.wait_idle()
    with server.http.stream("POST", "/v1/completions", json=stuck) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert post(server, "/inference/v1/abort_requests", {}) == {"status": "aborted", "aborted": 1}
        assert '"finish_reason":"abort"' in "".join(lines)
    assert "not understood" in post(server, "/abort_requests", {"request_ids": 1}, 400)["error"]["message"]


def test_caches_of_media_are_reset(server: RunningServer) -> None:
    """A model for texts has none, so that they are empty already; tests/media has one with pictures."""
    assert post(server, "/reset_mm_cache", None) == post(server, "/reset_encoder_cache", None) == {"reset": True}
    assert server.http.get("/readyz").json() == server.http.get("/ready").json()
