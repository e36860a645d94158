"""/v1/quote over HTTP, and what a server refuses early by what it foretells."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from core.args.arg import Given
from core.scheduler.step_cost import StepCost, StepWork
from core_config.arguments.sources import merge
from core_config.served.server import server_config
from core_config.served.server_config import ServerConfig
from core_frontend.quote.widths import LEAST, Factors
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import FakeClient

BODY = {"model": "fake-model", "prompt": "Hello", "max_tokens": 20}
CHAT = {"model": "fake-model", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}
STEP_S = 0.01
TOKEN_S = 0.02


class CostlyClient(FakeClient):
    """A fake whose engine says that a step takes `STEP_S` and a prompt token `TOKEN_S`. asked: the prefixes of each call."""

    asked: list[list[dict[str, Any]]]

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        accounts = self.__dict__.setdefault("accounts", set())
        if method == "watch_energy":
            accounts.add((arguments or {})["request_id"])
            return True
        if method == "take_energy":
            accounts.remove((arguments or {})["request_id"])
            return {"processor_ns": 1_234_000_000, "microjoules": None}
        if method != "step_costs":
            return await super().call(method, arguments)
        given = arguments or {}
        self.__dict__.setdefault("asked", []).append(given["prefixes"])
        cost = StepCost()
        for number in range(400):
            tokens = number % 2 * 50
            cost.observe(StepWork(tokens, 1 - number % 2, 0, 0), STEP_S + TOKEN_S * tokens)
        cached = [min(len(prefix["tokens"]) // 4, 2) for prefix in given["prefixes"]]
        return {"cost": cost.state(), "cached": cached, "bytes": [100 * n for n in given["lengths"]], "room": 1000}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    config = ServerConfig(quotes=True, api_keys=("one", "two"))
    with run_server(config, client=CostlyClient) as running:
        running.http.headers["authorization"] = "Bearer one"
        yield running


def quoted(server: RunningServer, path: str, body: object, **headers: str) -> tuple[int, dict[str, Any]]:
    answer = server.http.post("/v1/quote", params={"path": path}, json=body, headers=headers)
    return answer.status_code, answer.json()


def test_a_quote_tells_what_a_request_would_take(server: RunningServer) -> None:
    status, quote = quoted(server, "/v1/completions", BODY)
    assert status == 200
    assert quote["object"] == "quote" and quote["model"] == "fake-model" and quote["choices"] == 1
    assert quote["prompts"] == [{"prompt_tokens": 6, "cached_tokens": 2, "kv_bytes": 2600}]
    first, end = quote["first_token"], quote["end_at_max_tokens"]
    assert 0 < first["low"] < STEP_S + 4 * TOKEN_S < first["high"]
    assert end["tokens"] == 20 and end["seconds"]["high"] > first["high"]
    assert quote["would_be_refused"] is None and quote["retry_after"] is None
    assert not server.fake.live  # nothing was run


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | {"n": 3}),
        ("/v1/messages", CHAT),
        ("/v1/responses", {"model": "fake-model", "input": "Hello", "max_output_tokens": 20}),
    ],
)
def test_bodies_of_every_api_are_quoted(server: RunningServer, path: str, body: dict[str, object]) -> None:
    status, quote = quoted(server, path, body)
    assert status == 200, quote
    assert quote["choices"] == body.get("n", 1) and quote["end_at_max_tokens"]["tokens"] == 20


def test_prefixes_are_looked_up_for_the_own_key_alone(server: RunningServer) -> None:
    quoted(server, "/v1/completions", BODY | {"cache_salt": "s"})
    one = server.fake.asked[-1][0]  # type: ignore[attr-defined]
    quoted(server, "/v1/completions", BODY | {"cache_salt": "s"}, authorization="Bearer two")
    two = server.fake.asked[-1][0]  # type: ignore[attr-defined]
    assert one["salt"] == two["salt"] == "s" and one["tenant"] != two["tenant"]


@pytest.mark.parametrize(
    ("path", "body", "headers", "words"),
    [
        ("/v1/nothing", BODY, {}, "whose requests cannot be quoted; expected one of"),
        ("/v1/completions", BODY | {"max_tokens": -1}, {}, "max_tokens"),
        ("/v1/completions", {"prompt": 7}, {}, "prompt"),
        ("/v1/completions", BODY, {"x-session": "a"}, "A request in a session cannot be quoted"),
        ("/v1/embeddings", {"model": "fake-model", "input": "a"}, {}, "whose requests cannot be quoted"),
    ],
)
def test_what_cannot_be_quoted_is_refused(
    server: RunningServer, path: str, body: object, headers: dict[str, str], words: str
) -> None:
    status, answer = quoted(server, path, body, **headers)
    assert status in (400, 404, 422)
    assert words in answer["error"]["message"]


def test_a_key_is_needed(server: RunningServer) -> None:
    assert quoted(server, "/v1/completions", BODY, authorization="Bearer no")[0] == 401


def test_answers_teach_the_forecast_and_what_cannot_meet_its_timeout_is_refused(server: RunningServer) -> None:
    body = BODY | {"timeout": 0.05, "prompt": "x" * 100}
    assert server.http.post("/v1/completions", json=body).status_code == 200  # so far nothing is known for sure
    for number in range(2 * LEAST):
        stream = number % 2 == 0
        assert server.http.post("/v1/completions", json=BODY | {"stream": stream}).status_code == 200
    text = server.http.get("/metrics").text
    assert 'core:quotes_scored_total{kind="first"' in text and "core:quote_width_seconds_sum" in text
    forecast = server.engine.queue.forecast
    assert forecast is not None and forecast.is_sure
    # The fake answers sooner than the costs say. From here on the widths are those of an engine that keeps to them.
    for width in forecast.scores.widths.values():
        width.__init__()  # type: ignore[misc]
        for place in range(40):
            width.observe(0.9 + 0.005 * place, Factors(0.5, 2.0, 0.5, 2.0))
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "takes" in answer.text and "even if no other request runs" in answer.text
    assert "timeout" in quoted(server, "/v1/completions", body)[1]["would_be_refused"]
    server.http.post("/v1/completions", json=BODY | {"timeout": 30}).raise_for_status()


def test_a_server_without_quotes_has_no_such_path() -> None:
    with run_server() as running:
        assert running.http.post("/v1/quote", json=CHAT).status_code == 404
        assert running.engine.queue.forecast is None


@pytest.mark.parametrize("several", ["api_server_count", "data_parallel_size"])
def test_one_process_has_to_see_every_request(several: str) -> None:
    problems: list[str] = []
    given = {name: Given(value, "command line") for name, value in {"quotes": "true", several: "2"}.items()}
    server_config(merge(given, {}), problems)
    assert any(problem.startswith("--quotes: one process") and "is 2" in problem for problem in problems)


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/v1/completions", BODY, "energy"),
        ("/v1/chat/completions", CHAT, "energy"),
        ("/v1/messages", CHAT, "energy"),
        ("/v1/responses", {"model": "fake-model", "input": "Hello", "max_output_tokens": 20}, "energy"),
    ],
)
def test_answers_say_what_they_took_if_they_are_asked(
    server: RunningServer, path: str, body: dict[str, object], place: str
) -> None:
    told = server.http.post(path, json=body | {"energy": True}).json()
    assert told[place] == {"processor_seconds": 1.2, "joules": None}
    assert place not in server.http.post(path, json=body).json()
    stream = server.http.post(path, json=body | {"energy": True, "stream": True}).text
    assert stream.count('"energy":{"processor_seconds":1.2,"joules":null}') == 1
    assert not server.fake.__dict__["accounts"]


def test_a_server_without_quotes_refuses_to_tell_energy() -> None:
    with run_server() as running:
        answer = running.http.post("/v1/completions", json=BODY | {"energy": True})
        assert answer.status_code == 400 and "--quotes" in answer.text
