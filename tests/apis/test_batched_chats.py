"""Several conversations in one request: each is answered as a chat of its own."""

from typing import Any

import pytest

from core.api.config import SchedulerConfig
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import ANSWERS

PATH = "/v1/chat/completions/batch"


def talk(*texts: str) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": text}] for text in texts]


def post(server: RunningServer, body: Any, status: int = 200, path: str = PATH, **headers: str) -> Any:
    answer = server.http.post(path, json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.fixture(scope="module", autouse=True)
def warm(server: RunningServer) -> None:
    """The first chat waits for the process that renders."""
    post(server, {"messages": talk("Hi")[0], "max_tokens": 2}, path="/v1/chat/completions")


def test_each_conversation_is_answered_as_alone(server: RunningServer) -> None:
    fields = {"max_tokens": 12, "logprobs": True, "top_logprobs": 1, "stop": ["wör"], "return_token_ids": True}
    conversations = talk("Hi", "SLOW, a longer one", "Bye")
    answer = post(server, {"messages": conversations, "request_id": "mine", **fields})
    assert (answer["id"], answer["object"]) == ("chatcmpl-mine", "chat.completion")
    assert "prompt_token_ids" not in answer
    alone = [post(server, {"messages": one, **fields}, path="/v1/chat/completions") for one in conversations]
    for index, (choice, single) in enumerate(zip(answer["choices"], alone, strict=True)):
        assert choice == {**single["choices"][0], "index": index}
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][name] == sum(single["usage"][name] for single in alone)


def test_what_a_request_asks_for_is_told_of_each(server: RunningServer) -> None:
    answer = post(server, {"messages": talk("Hi", "Bye"), "explain": True, "timings": True, "max_tokens": 60})
    assert len(answer["explain"]) == len(answer["timings"]) == 2
    (one,) = post(server, {"messages": talk("Hi"), "max_tokens": 60})["choices"]
    assert one["message"]["content"] == ANSWERS[0]


def test_an_answer_that_fails_is_told_with_its_index(server: RunningServer) -> None:
    refused = post(server, {"messages": talk("Hi", "FAIL", "STUCK"), "max_tokens": 60}, 500)
    assert refused["error"]["message"].startswith("Conversation 1 of messages: ")
    server.wait_idle()  # the others were aborted


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": None}, "list of conversations"),
        ({"messages": talk("Hi")[0]}, "messages[0] is no conversation"),
        ({"messages": [*talk("Hi"), []]}, "Conversation 1 of messages: "),
        ({"messages": [*talk("Hi"), [{"role": "user"}]]}, "Conversation 1 of messages: "),
        ({"messages": [*talk("Hi"), [5]]}, "Conversation 1 of messages: "),
        ({"messages": talk("Hi", "x" * 400)}, "Conversation 1 of messages: "),
        ({"messages": talk(*["Hi"] * 5000)}, "5000"),
        ({"temperature": -1}, "temperature"),
        ({"heat": 1}, "heat"),
        ({"stream": True}, "stream is not served here"),
        ({"n": 2}, "n is not served here"),
        ({"tools": [{"type": "function"}]}, "tools is not served here"),
        ({"tool_choice": "required"}, "tool_choice is not served here"),
        ({"use_beam_search": True}, "use_beam_search is not served here"),
        ({"prompt_logprobs": 1}, "prompt_logprobs is not served here"),
        ({"session": "a"}, "session is not served here"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params is not served here"),
    ],
)
def test_bad_bodies_are_refused_in_a_sentence(server: RunningServer, change: dict[str, Any], words: str) -> None:
    assert words in post(server, {"messages": talk("Hi"), **change}, 400)["error"]["message"]


def test_harmless_values_of_refused_fields_are_none(server: RunningServer) -> None:
    harmless = {"stream": False, "n": 1, "tools": None, "tool_choice": "none", "use_beam_search": False}
    assert len(post(server, {"messages": talk("Hi", "Bye"), "max_tokens": 9, **harmless})["choices"]) == 2


def test_each_conversation_counts_towards_the_limits() -> None:
    with run_server(
        ServerConfig(uvicorn_log_level="warning"), scheduler=SchedulerConfig(max_num_queued_reqs=2)
    ) as small:
        refused = post(small, {"messages": talk("Hi", "Bye", "Hello")}, 400)
        assert "--max-num-queued-reqs" in refused["error"]["message"] and refused["error"]["param"] == "messages"
        items = {"query": "a", "items": ["b"] * 3, "label_token_ids": [5]}
        assert "--max-num-queued-reqs" in post(small, items, 400, "/generative_scoring")["error"]["message"]


def test_a_header_names_no_session_of_several(server: RunningServer) -> None:
    refused = post(server, {"messages": talk("Hi")}, 400, **{"x-session": "mine"})
    assert "X-Session" in refused["error"]["message"]


def test_shared_fields_count_for_each_conversation(server: RunningServer) -> None:
    shared = {"metadata": {"note": "x" * 200_000}}
    assert "--max-body-size" in post(server, {"messages": talk(*["Hi"] * 200), **shared}, 413)["error"]["message"]
