"""Whatever a client sends, the answer is OpenAI's error object with the right status, and the server goes on."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core_apis.protocol.chat import ChatRequest
from core_apis.protocol.completions import CompletionRequest
from core_apis.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from tests.apis.conftest import RunningServer

COMPLETION: dict[str, Any] = {"prompt": "Hi", "max_tokens": 2}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}

# (changed fields, status, param, words of the message)
BOTH = [
    ({"model": "gpt-4"}, 404, "model", "'fake-model'"),
    ({"temperature": -1}, 400, "temperature", "-1"),
    ({"temperature": "hot"}, 400, "temperature", "float"),
    ({"temperature": True}, 400, "temperature", "bool"),
    ({"top_p": 0}, 400, "top_p", "top_p"),
    ({"top_p": 1.5}, 400, "top_p", "1.5"),
    ({"top_k": -5}, 400, "top_k", "-5"),
    ({"top_k": 10**30}, 400, "top_k", "int"),
    ({"min_p": 2}, 400, "min_p", "2"),
    ({"n": 0}, 400, "n", "0"),
    ({"n": 1000}, 400, "n", "128"),
    ({"n": 1.5}, 400, "n", "int"),
    ({"max_tokens": -1}, 400, "max_tokens", "-1"),
    ({"max_tokens": 10_000}, 400, "max_tokens", "256"),
    ({"presence_penalty": 3}, 400, "presence_penalty", "3"),
    ({"repetition_penalty": 0}, 400, "repetition_penalty", "0"),
    ({"seed": "x"}, 400, "seed", "int"),
    ({"seed": 2**70}, 400, "seed", "integer"),
    ({"stop": ""}, 400, "stop", "empty"),
    ({"stop": [1]}, 400, "stop", "str"),
    ({"stop_token_ids": [9999]}, 400, "stop_token_ids", "vocabulary"),
    ({"logit_bias": {"x": 1}}, 400, "logit_bias", "int"),
    ({"logit_bias": {"99999": 1}}, 400, "logit_bias", "vocabulary"),
    ({"logit_bias": {"5": 101}}, 400, "logit_bias[5]", "100"),
    ({"allowed_token_ids": []}, 400, "allowed_token_ids", "empty"),
    ({"bad_words": [""]}, 400, "bad_words", "empty"),
    ({"prompt_logprobs": 21}, 400, "prompt_logprobs", "20"),
    ({"prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs", "stream"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", "stream"),
    ({"stream": True, "stream_options": {"usage": True}}, 400, "usage", "stream_options"),
    ({"response_format": {"type": "json_objekt"}}, 400, "response_format", "Did you mean 'json_object'?"),
    ({"response_format": {"type": ["text"]}}, 400, "response_format", "expected one of"),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format", "json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}, 400, "response_format", "object"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strikt": True}}},
        400,
        "response_format",
        "'strict'",
    ),
    (
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        400,
        "guided_regex",
        "response_format and guided_regex ask for an answer's form twice",
    ),
    ({"guided_regex": "a", "guided_choice": ["a"]}, 400, "guided_regex", "twice"),
    ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, 400, "structured_outputs", "twice"),
    ({"guided_decoding_backend": "xgrammar"}, 400, "guided_decoding_backend", "guided_json"),
    ({"structured_outputs": {"regexp": "a"}}, 400, "regexp", "structured_outputs"),
    ({"temprature": 1}, 400, "temprature", "'temperature'"),
    ({"request_id": "a b"}, 400, "request_id", "request_id"),
    ({"request_id": "abc\n"}, 400, "request_id", "request_id"),
    ({"request_id": "ä"}, 400, "request_id", "request_id"),
    ({"truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens", "0"),
    ({"min_tokens": 5}, 400, "min_tokens", "max_tokens"),
]
COMPLETION_ONLY = [
    ({"prompt": ""}, 400, "prompt", "empty"),
    ({"prompt": []}, 400, "prompt", "empty"),
    ({"prompt": [[]]}, 400, "prompt", "empty"),
    ({"prompt": ["a", ""]}, 400, "prompt", "empty"),
    ({"prompt": None}, 400, "prompt", "missing"),
    ({"prompt": 5}, 400, "prompt", "int"),
    ({"prompt": [1, "a"]}, 400, "prompt", "string"),
    ({"prompt": ["a", 1]}, 400, "prompt", "string"),
    ({"prompt": [1.5]}, 400, "prompt", "string"),
    ({"prompt": [True]}, 400, "prompt", "string"),
    ({"prompt": [-1]}, 400, "prompt", "string"),
    ({"prompt": [10**30]}, 400, "prompt_token_ids", "vocabulary"),
    ({"prompt": [5000]}, 400, "prompt_token_ids", "vocabulary"),
    ({"prompt": "x" * 300}, 400, "prompt", "at most 255"),
    ({"prompt": ["a"] * 100, "n": 100}, 400, "prompt", "10000 choices"),
    ({"logprobs": 21}, 400, "logprobs", "20"),
    ({"logprobs": -2}, 400, "logprobs", "-2"),
    ({"logprobs": True}, 400, "logprobs", "bool"),
    ({"max_tokens": 0}, 400, "max_tokens", "0"),
    ({"suffix": "end"}, 400, "suffix", "suffix"),
    ({"best_of": 3}, 400, "best_of", "3"),
    ({"promt": "x"}, 400, "promt", "'prompt'"),
]
CHAT_ONLY = [
    ({"messages": []}, 400, "messages", "empty"),
    ({"messages": None}, 400, "messages", "missing"),
    ({"messages": "Hi"}, 400, "messages", "array"),
    ({"messages": ["Hi"]}, 400, "messages", "object"),
    ({"messages": [{"content": "Hi"}]}, 400, "messages", "role"),
    ({"messages": [{"role": "user"}]}, 400, "messages", "content"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages", "content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages", "image_url"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages", "text"),
    ({"messages": [{"role": "user", "content": "x" * 300}]}, 400, "prompt", "context"),
    ({"logprobs": 3}, 400, "logprobs", "bool"),
    ({"top_logprobs": 3}, 400, "top_logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "20"),
    ({"tools": [{"type": "function"}]}, 400, "tools", "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "prompt", "context"),
    ({"tool_choice": "required"}, 400, "tool_choice", "tool"),
    ({"functions": [{}]}, 400, "functions", "functions"),
    ({"chat_template": "{{ 1 }}"}, 400, "chat_template", "--chat-template"),
    ({"chat_template_kwargs": {"messages": 1}}, 400, "chat_template_kwargs", "messages"),
    ({"add_generation_prompt": True, "continue_final_message": True}, 400, "continue_final_message", "exclude"),
    ({"modalities": ["audio"]}, 400, "modalities", "text"),
    ({"max_completion_tokens": 0}, 400, "max_tokens", "0"),
]
CASES = [
    *(("/v1/completions", {**COMPLETION, **case[0]}, *case[1:]) for case in [*BOTH, *COMPLETION_ONLY]),
    *(("/v1/chat/completions", {**CHAT, **case[0]}, *case[1:]) for case in [*BOTH, *CHAT_ONLY]),
    ("/tokenize", {}, 400, "prompt", "either"),
    ("/tokenize", {"prompt": "a", "messages": []}, 400, "prompt", "either"),
    ("/tokenize", {"prompt": "a", "model": "x"}, 404, "model", "fake-model"),
    ("/detokenize", {}, 400, "tokens", "missing"),
    ("/detokenize", {"tokens": [5000]}, 400, "tokens", "vocabulary"),
    ("/detokenize", {"tokens": ["a"]}, 400, "tokens", "int"),
]


def check_error(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    return error


@pytest.mark.parametrize(("path", "body", "status", "param", "words"), CASES)
def test_wrong_fields(server: RunningServer, path: str, body: Any, status: int, param: str, words: str) -> None:
    error = check_error(server.http.post(path, json=body), status)
    assert error["param"] == param
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b"null",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": ' + b"[" * 100_000 + b"}",
        b'{"prompt": [' + b"9" * 6000 + b"]}",
    ],
)
def test_bodies_that_are_no_json_objects(server: RunningServer, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        check_error(server.http.post(path, content=body, headers={"content-type": "application/json"}), 400)


def test_wrong_content_type_path_and_method(server: RunningServer) -> None:
    form = server.http.post("/v1/completions", data={"prompt": "Hi"})
    assert "application/json" in check_error(form, 415)["message"]
    assert "/v1/completions" in check_error(server.http.post("/v1/completion", json={}), 404)["message"]
    answer = server.http.get("/v1/completions")
    assert "POST" in check_error(answer, 405)["message"]
    assert answer.headers["allow"] == "POST"
    for method in ("PATCH", "OPTIONS"):  # a path with several routes names the methods of all
        answer = server.http.request(method, "/v1/sessions/any")
        assert "DELETE, GET" in check_error(answer, 405)["message"]
        assert answer.headers["allow"] == "DELETE, GET"


def test_null_means_not_given(server: RunningServer) -> None:
    for path, request, known in (
        ("/v1/completions", CompletionRequest, COMPLETION),
        ("/v1/chat/completions", ChatRequest, CHAT),
    ):
        body = {**dict.fromkeys(request.__struct_fields__), **known}
        assert server.http.post(path, json=body).status_code == 200


ROUTES = {
    "/v1/completions": (CompletionRequest, COMPLETION),
    "/v1/chat/completions": (ChatRequest, CHAT),
    "/tokenize": (TokenizeRequest, {}),
    "/detokenize": (DetokenizeRequest, {}),
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]) | VALUES, "content": st.text() | VALUES}
    ),
    max_size=3,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_bodies_never_break_the_server(server: RunningServer, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(ROUTES)))
    request, known = ROUTES[path]
    names = st.sampled_from(request.__struct_fields__) | st.text(max_size=5)
    body = {**known, **data.draw(st.dictionaries(names, VALUES, max_size=3))}
    if "messages" in body and data.draw(st.booleans()):
        body["messages"] = data.draw(MESSAGES)
    answer = server.http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code < 500, (body, answer.text)
    if answer.status_code != 200:
        check_error(answer, answer.status_code)


def test_errors_quote_no_more_than_a_person_would_read(server: RunningServer) -> None:
    long = "x" * 10_000
    for answer in (
        server.http.post("/v1/completions", json=COMPLETION | {"model": long}),
        server.http.post("/v1/completions", json=COMPLETION | {long: 1}),
        server.http.get(f"/{long}"),
    ):
        assert answer.status_code in (400, 404) and len(answer.content) < 3000
