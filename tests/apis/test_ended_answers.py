"""Answers that end before their time, by the engine's word, and answers that are long: each route tells them rightly."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from core.api.messages import EngineOutput, EngineOutputs, EngineRequest
from core.api.pooling import PoolingConfig
from core_apis.answers.json_pieces import JsonPieces, encoded64, long_list
from core_config.served.server_config import ServerConfig
from core_formats.server_limits import ServerLimits
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import token_logprobs
from tests.apis.scripted_engine import PoolingClient, ScriptedClient

FULL = "The KV cache holds 48 tokens (3 blocks of 16) and this sequence has filled it."
WORK = "structured_outputs takes too much work: one mask of its grammar took 60 ms."
HI = [{"role": "user", "content": "hi"}]


class EndingClient(ScriptedClient):
    """Answers with a few tokens and ends as it is told. scores: whether prompts get log-probabilities."""

    finish_reason: Any = "length"
    stop_reason: str | None = None
    words = "Hello"
    scores = True

    async def run(self, request: EngineRequest) -> None:
        await asyncio.sleep(0)
        ids = self.tokenizer.encode(self.words, add_special_tokens=False)
        output = EngineOutput(
            request.request_id, request.choice, 0, ids, finish_reason=self.finish_reason, stop_reason=self.stop_reason
        )
        wanted = request.params.logprobs
        size = self.tokenizer.vocab_size
        if wanted is not None:
            output.logprobs = [token_logprobs(token, wanted, size) for token in ids]
        if request.params.prompt_logprobs is not None and self.scores:
            some = request.prompt_token_ids[1:]
            output.prompt_logprobs = [token_logprobs(token, request.params.prompt_logprobs, size) for token in some]
        self.live.pop(request.key, None)
        self.on_outputs(EngineOutputs(0, [output], self.stats()))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server(ServerConfig(uvicorn_log_level="warning"), client=EndingClient, max_model_len=4096) as running:
        yield running


def ending(server: RunningServer, finish_reason: str, stop_reason: str | None = None, **more: Any) -> None:
    fake = server.fake
    assert isinstance(fake, EndingClient)
    fake.finish_reason, fake.stop_reason = finish_reason, stop_reason
    fake.words, fake.scores = more.get("words", "Hello"), more.get("scores", True)


def post(server: RunningServer, path: str, **body: Any) -> Any:
    return server.http.post(path, json=body)


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def last(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return [event for event in found if event["type"] == kind][-1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_cache_is_no_stop_sequence(server: RunningServer, stream: bool) -> None:
    ending(server, "length", FULL)
    answer = post(server, "/v1/messages", max_tokens=50, messages=HI, stream=stream)
    assert answer.status_code == 200
    found = answer.json() if not stream else last(events(answer.text), "message_delta")["delta"]
    assert (found["stop_reason"], found["stop_sequence"]) == ("model_context_window_exceeded", None)
    ending(server, "stop", "wör")
    found = post(server, "/v1/messages", max_tokens=50, messages=HI, stop_sequences=["wör"]).json()
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "wör")


def test_an_answer_that_a_pause_ends_is_no_defect(server: RunningServer) -> None:
    ending(server, "abort")
    answer = post(server, "/v1/messages", max_tokens=50, messages=HI)
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("words", ["", "Hello"])
def test_a_response_that_a_pause_ends_has_a_last_event(server: RunningServer, words: str) -> None:
    ending(server, "abort", words=words)
    found = events(post(server, "/v1/responses", input="hi", stream=True, store=False).text)
    assert found[-1]["type"] == "response.failed"
    response = found[-1]["response"]
    assert response["status"] == "failed" and "paused" in response["error"]["message"]
    whole = post(server, "/v1/responses", input="hi", store=False).json()
    assert whole["status"] == "failed" and whole["error"] == response["error"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("words", ["", "Hello"])
def test_a_prompt_that_was_not_scored_is_told_without_numbers(server: RunningServer, stream: bool, words: str) -> None:
    ending(server, "abort", words=words, scores=False)
    answer = post(server, "/v1/completions", prompt="abc", max_tokens=5, echo=True, logprobs=1, stream=stream)
    assert answer.status_code == 200
    (choice,) = answer.json()["choices"] if not stream else events(answer.text)[0]["choices"]
    assert choice["text"] == "abc" + words and choice["finish_reason"] == "abort"
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["text_offset"]) == len(logprobs["top_logprobs"])
    assert [one is None for one in logprobs["token_logprobs"]].count(True) == 1 + len(
        "abc"
    )  # a token begins every prompt


def test_a_grammar_that_is_too_much_work_is_the_requests_own_fault(server: RunningServer) -> None:
    ending(server, "error", WORK)
    answer = post(server, "/v1/completions", prompt="a", max_tokens=5)
    error = answer.json()["error"]
    assert answer.status_code == 422 and error["code"] == "too_much_work" and error["param"] == "structured_outputs"
    assert post(server, "/v1/chat/completions", messages=HI, stream=True).json()["error"]["message"] == WORK
    ending(server, "error", "The grammar backend 'x' failed.")
    assert post(server, "/v1/completions", prompt="a", max_tokens=5).status_code == 500


class Threads:
    """Which threads write answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from core_apis.answers.logprobs import LogprobsFormatter

        self.names: list[str] = []
        told = LogprobsFormatter.completion

        def completion(formatter: Any, *arguments: Any) -> Any:
            self.names.append(threading.current_thread().name)
            return told(formatter, *arguments)

        monkeypatch.setattr(LogprobsFormatter, "completion", completion)


@pytest.mark.parametrize("stream", [False, True])
def test_long_outputs_of_every_prompt_are_written_beside_the_event_loop(
    server: RunningServer, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending(server, "length")
    threads = Threads(monkeypatch)
    prompts = ["a" * 1500, "b" * 1500, "c" * 1500]
    answer = post(server, "/v1/completions", prompt=prompts, max_tokens=5, echo=True, logprobs=1, stream=stream)
    assert answer.status_code == 200
    assert len(threads.names) == 3 and all(name.startswith("asyncio_") for name in threads.names)
    choices = answer.json()["choices"] if not stream else [one["choices"][0] for one in events(answer.text)]
    for choice in choices:
        assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["token_logprobs"]) == 1501 + len("Hello")


def test_numbers_are_counted_before_the_engine_is_asked() -> None:
    pooling = PoolingConfig(kinds=("last",), normalize=False, size=PoolingClient.SIZE)
    limits = ServerLimits(max_request_tokens=20)
    with run_server(ServerConfig(limits=limits), client=PoolingClient, pooling=pooling, max_model_len=64) as running:
        assert isinstance(running.fake, PoolingClient)
        assert post(running, "/v1/embeddings", input=["a"] * 10).status_code == 200
        assert post(running, "/pooling", input=["a" * 10], task="token_embed").status_code == 200
        before = len(running.fake.seen)
        for texts in (["a" * 30], ["a" * 10] * 2):
            answer = post(running, "/pooling", input=texts, task="token_embed")
            error = answer.json()["error"]
            assert answer.status_code == 413, error["message"]
            assert "--max-request-tokens" in error["message"]
            assert error["param"] == "input"
        assert (
            post(running, "/pooling", input=["a" * 30], task="token_embed", truncate_prompt_tokens=10).status_code
            == 200
        )
        assert len(running.fake.seen) == before + 1


def test_many_numbers_are_written_in_pieces_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    told = JsonPieces.body

    def body(pieces: JsonPieces, shell: Any) -> list[bytes]:
        names.append(threading.current_thread().name)
        found = told(pieces, shell)
        assert max(map(len, found)) < 500_000
        return found

    monkeypatch.setattr(JsonPieces, "body", body)
    pooling = PoolingConfig(kinds=("last",), normalize=False, size=PoolingClient.SIZE)
    with run_server(client=PoolingClient, pooling=pooling, max_model_len=4096) as running:
        few = post(running, "/pooling", input=["ab"], task="token_embed").json()
        many = post(running, "/pooling", input=["ab" + "c" * 3000], task="token_embed").json()
    assert few["data"][0]["data"][0] == [1.0, 1.0, 0.0, 0.0]
    assert many["data"][0]["data"] == [[1.0, 1.0, 3000.0, 0.0]] * 3003
    assert not names[0].startswith("asyncio_") and names[1].startswith("asyncio_")


def test_pieces_are_the_same_as_the_whole() -> None:
    lists = JsonPieces()
    numbers = np.arange(30_000, dtype=np.float32).reshape(-1, 3) / 7
    inner = [{"n": lists.numbers(numbers[:5]), "text": 'a\0"b'}, {"n": lists.numbers(numbers[0])}]
    shell = {"all": lists.numbers(numbers), "none": lists.numbers(numbers[:0]), "in": lists.entries(inner * 300)}
    wanted = {
        "all": numbers.tolist(),
        "none": [],
        "in": [{"n": numbers[:5].tolist(), "text": 'a\0"b'}, {"n": numbers[0].tolist()}] * 300,
    }
    assert json.loads(b"".join(lists.body(shell))) == wanted
    assert b"".join(encoded64([b"a", b"bcd", b"", b"ef"])) == b"YWJjZGVm"
    assert (
        bytes(long_list(list(range(1000)))) == b"[" + b",".join(str(number).encode() for number in range(1000)) + b"]"
    )
    assert long_list([1]) == [1]
