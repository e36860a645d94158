"""Streams go on without their clients and servers, and clients read on where they were."""

import asyncio
import errno
import os
import threading
import time
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest

from core.api.config import ModelConfig
from core_apis.durable import streams as durable_streams
from core_apis.durable.key_digests import KeyDigests
from core_apis.durable.origin import origin_of
from core_apis.durable.streams import DurableStreams, Job
from core_apis.journal import segments as segment_files
from core_apis.journal.journal import Journal
from core_apis.journal.records import Accepted, Frame
from core_config.served.server_config import JournalSettings, ServerConfig
from tests.apis import fake_engine
from tests.apis.conftest import RunningServer, run_server
from tests.apis.durable.reading import Reading, read, read_again
from tests.apis.fake_engine import ANSWERS

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
RESPONSE = "/v1/responses"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "SLOW"}]}
PROMPTS: dict[str, Any] = {"prompt": ["SLOW", "SLOW 2"], "n": 2, "max_tokens": 20, "logprobs": 2}


@pytest.fixture(autouse=True)
def _quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_engine, "SLOW_SECONDS", 0.01)


def config(path: Path, keys: tuple[str, ...] = (), **settings: Any) -> ServerConfig:
    journal = JournalSettings(directory=str(path / "journal"), **settings)
    return ServerConfig(uvicorn_log_level="warning", api_keys=keys, journal=journal)


def choices(reading: Reading) -> list[dict[str, Any]]:
    """What the events say, without what differs from request to request; by choice, for their order is that of steps."""
    told = [choice for body in reading.bodies for choice in body["choices"]]
    return sorted(told, key=lambda choice: choice["index"])


def undisturbed(path: str, body: dict[str, Any]) -> Reading:
    with run_server(ServerConfig(uvicorn_log_level="warning")) as server:
        return read(server.http, path, body, Reading())


@pytest.mark.parametrize(("path", "body"), [(CHAT, ASK), (COMPLETION, PROMPTS)])
def test_a_client_that_left_reads_on(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    whole = undisturbed(path, body)
    assert not whole.events[0].id, "without a journal events have no ids"
    with run_server(config(tmp_path)) as server:
        reading = read(server.http, path, body, Reading(), 5)
        read(server.http, path, body, reading, 9)
        read(server.http, path, body, reading)
        again = read_again(server.http, f"{path}/{reading.answer_id}")
        rest = read_again(server.http, f"{path}/{reading.answer_id}?starting_after=4")
    reading.check_numbers()
    assert reading.done
    assert choices(reading) == choices(whole)
    assert again.events == reading.events
    assert rest.events == reading.events[5:]


@pytest.mark.parametrize(("path", "body"), [(CHAT, ASK), (COMPLETION, PROMPTS)])
def test_the_next_server_goes_on(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    whole = undisturbed(path, body)
    reading = Reading()
    for most in (6, 12, 10**9):
        with run_server(config(tmp_path)) as server:
            read(server.http, path, body, reading, most)
            if most > 12:
                again = read_again(server.http, f"{path}/{reading.answer_id}")
    reading.check_numbers()
    assert choices(reading) == choices(whole)
    assert [event.data for event in again.events] == [event.data for event in reading.events]
    with run_server(config(tmp_path)) as server:
        assert not server.fake.live, "what has ended does not run again"
        assert read_again(server.http, f"{path}/{reading.answer_id}").events == again.events


def test_a_stream_that_nobody_read_to_its_end_is_complete(tmp_path: Path) -> None:
    with run_server(config(tmp_path)) as server:
        reading = read(server.http, CHAT, ASK, Reading(), 3)
        server.wait_idle()
        assert not server.fake.aborted
        read(server.http, CHAT, ASK, reading)
    assert reading.texts() == {0: ANSWERS[0]}


def test_a_stream_ends_when_nobody_reads_it_for_too_long(tmp_path: Path) -> None:
    with run_server(config(tmp_path, patience_s=0.05)) as server:
        reading = read(server.http, CHAT, ASK, Reading(), 3)
        server.wait_idle()
        assert len(server.fake.aborted) == 1
        missing = server.http.get(f"{CHAT}/{reading.answer_id}")
        assert missing.status_code == 404
        assert "--request-journal-patience" in missing.json()["error"]["message"]
    with run_server(config(tmp_path)) as server:
        assert not server.fake.live


def test_what_has_ended_goes_after_its_time(tmp_path: Path) -> None:
    with run_server(config(tmp_path, lifetime_s=0.2)) as server:
        reading = read(server.http, CHAT, {**ASK, "max_tokens": 2}, Reading())
        path = f"{CHAT}/{reading.answer_id}"
        assert server.http.get(path).status_code == 200
        time.sleep(0.3)
        assert server.http.get(path).status_code == 404


def test_entries_of_a_removed_key_go_when_they_are_too_old(tmp_path: Path) -> None:
    old = {"authorization": "Bearer old-key"}
    with run_server(config(tmp_path, ("old-key",))) as server:
        for _ in range(3):
            read(server.http, CHAT, ASK, Reading(), **old)
    opened = Journal(str(tmp_path / "journal"), 1 << 20)
    assert len(opened.entries) == 3
    asyncio.run(opened.close())
    for _ in range(2):  # the second server finds the room that the first one made
        with run_server(config(tmp_path, ("new-key",), lifetime_s=0.01)) as server:
            assert server.http.get("/health").status_code == 200
    opened = Journal(str(tmp_path / "journal"), 1 << 20)
    assert opened.entries == []
    asyncio.run(opened.close())


@pytest.mark.parametrize("change", ["other weights", "same size later"])
def test_an_answer_of_other_weights_is_not_continued(tmp_path: Path, change: str) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(100_000))
    os.utime(weights, (1, 1))
    model = ModelConfig(model=str(tmp_path), served_names=("m",), max_model_len=8, vocab_size=8)
    before = origin_of(model, "numerics")
    assert origin_of(model, "numerics") == before
    if change == "other weights":
        weights.write_bytes(bytes(50_000) + b"x" + bytes(49_999))
        os.utime(weights, (1, 1))
        assert origin_of(model, "numerics") != before
    else:
        os.utime(weights, (2, 2))
        assert origin_of(model, "numerics") != before


async def test_an_answer_of_updated_weights_is_not_continued_by_a_server_that_begins_with_others() -> None:
    journal = Mock(salt=b"salt", next_number=Mock(return_value=1))
    digests = KeyDigests(b"salt", (), needs_key=False)
    model = ModelConfig(model="nowhere", served_names=("m",), max_model_len=8, vocab_size=8)
    versions = iter(["", "7"])
    streams = DurableStreams(journal, JournalSettings(directory=""), digests, model, "numerics", lambda: next(versions))
    job = Job("completion", "cmpl-1", None, 0, 0.0, "")
    for is_same in (True, False):
        await streams.accept(job, cast(Any, {}))
        (frame,), _ = journal.accept.call_args
        accepted = msgspec.msgpack.decode(frame.payload, type=Accepted)
        assert (accepted.origin == streams.origin) == is_same


def test_requests_are_recorded_outside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    make = durable_streams.accepted_frame

    def noted(number: int, accepted: Accepted) -> Frame:
        threads.append(threading.get_ident())
        return make(number, accepted)

    async def ident() -> int:
        return threading.get_ident()

    monkeypatch.setattr(durable_streams, "accepted_frame", noted)
    with run_server(config(tmp_path)) as server:
        loop = asyncio.run_coroutine_threadsafe(ident(), server.loop).result(10)
        read(server.http, COMPLETION, {"prompt": "SLOW", "max_tokens": 2}, Reading())
        read(server.http, RESPONSE, {"input": "SLOW"}, Reading())
    assert len(threads) == 2
    assert loop not in threads


def test_only_the_tenant_reads_on(tmp_path: Path) -> None:
    keys = ("alice-key", "bob-key")
    alice, bob = ({"authorization": f"Bearer {key}"} for key in keys)
    with run_server(config(tmp_path, keys)) as server:
        reading = read(server.http, CHAT, ASK, Reading(), 4, **alice)
        path = f"{CHAT}/{reading.answer_id}"
        for request in (bob, {**bob, "Last-Event-ID": reading.last_id}):
            assert server.http.get(path, headers=request).status_code == 404
        posted = server.http.post(CHAT, json={**ASK, "stream": True}, headers={**bob, "Last-Event-ID": reading.last_id})
        assert (posted.status_code, posted.json()["error"]["code"]) == (404, "stream_not_found")
    journal = b"".join(file.read_bytes() for file in (tmp_path / "journal").glob("*.journal"))
    assert b"alice-key" not in journal
    with run_server(config(tmp_path, keys[::-1])) as server:  # the order of keys is not what makes a tenant
        assert server.http.get(path, headers=bob).status_code == 404
        read(server.http, CHAT, ASK, reading, **alice)
    assert reading.texts() == {0: ANSWERS[0]}
    for others in (("carol-key",), ()):
        with run_server(config(tmp_path, others)) as server:
            headers = {"authorization": "Bearer carol-key"}
            assert server.http.get(path, headers=headers).status_code == 404
    with run_server(config(tmp_path, keys)) as server:
        assert read_again(server.http, path, **alice).texts() == {0: ANSWERS[0]}


def test_another_engine_does_not_go_on(tmp_path: Path) -> None:
    with run_server(config(tmp_path)) as server:
        reading = read(server.http, CHAT, ASK, Reading(), 4)
        made = server.http.post(RESPONSE, json={"input": "SLOW", "background": True}).json()
    with run_server(config(tmp_path), client=_OtherNumerics) as server:
        read(server.http, CHAT, ASK, reading)
        response = server.http.get(f"{RESPONSE}/{made['id']}").json()
    assert "computes differently" in reading.events[-1].body["error"]["message"]
    assert response["status"] == "failed"
    assert "computes differently" in response["error"]["message"]


class _OtherNumerics(fake_engine.FakeClient):
    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.ready.numerics = "other"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("nonsense", 400),
        ("chatcmpl-x:1:-3", 400),
        ("chatcmpl-unknown:1:3", 404),
        (":1:1", 400),
        ("x:1:" + "9" * 40, 400),
    ],
)
def test_headers_that_name_no_event(tmp_path: Path, header: str, status: int) -> None:
    with run_server(config(tmp_path)) as server:
        answer = server.http.post(CHAT, json={**ASK, "stream": True}, headers={"Last-Event-ID": header})
        assert answer.status_code == status
        assert answer.json()["error"]["message"]


def test_an_event_that_was_lost_with_an_earlier_server(tmp_path: Path) -> None:
    with run_server(config(tmp_path)) as server:
        reading = read(server.http, CHAT, ASK, Reading(), 4)
    with run_server(config(tmp_path)) as server:
        far = reading.last_id.rpartition(":")[0] + ":900"
        answer = server.http.post(CHAT, json={**ASK, "stream": True}, headers={"Last-Event-ID": far})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "event_lost")
        read(server.http, CHAT, ASK, reading)
    assert reading.texts() == {0: ANSWERS[0]}


def test_a_journal_that_is_full_refuses_only_what_it_would_keep(tmp_path: Path) -> None:
    with run_server(config(tmp_path, max_bytes=2000)) as server:
        running = read(server.http, CHAT, ASK, Reading(), 3)
        refused = server.http.post(CHAT, json={**ASK, "stream": True})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "journal_unavailable")
        assert int(refused.headers["retry-after"]) > 0
        background = server.http.post(RESPONSE, json={"input": "Hi", "background": True})
        assert background.status_code == 503
        assert server.http.post(CHAT, json={"messages": [{"role": "user", "content": "Hi"}]}).status_code == 200
        health = server.http.get("/health")
        assert (health.status_code, "journal" in health.json()) == (200, True)
        read(server.http, CHAT, ASK, running)
        assert running.texts() == {0: ANSWERS[0]}
        _wait(lambda: "journal" not in server.http.get("/health").json())
        assert server.http.post(CHAT, json={**ASK, "stream": True}).status_code == 200


def test_a_full_disk_stops_nothing_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with run_server(config(tmp_path)) as server:
        running = read(server.http, CHAT, ASK, Reading(), 3)
        left = read(server.http, CHAT, ASK, Reading(), 3)
        with monkeypatch.context() as patch:
            patch.setattr(segment_files, "_write", refuse)
            refused = server.http.post(CHAT, json={**ASK, "stream": True})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "journal_unavailable")
            assert "No space left" in server.http.get("/health").json()["journal"]
            assert server.http.post(COMPLETION, json={"prompt": "Hi"}).status_code == 200
            read(server.http, CHAT, ASK, running)
            assert running.texts() == {0: ANSWERS[0]}
            read(server.http, CHAT, ASK, left, 15)
        _wait(lambda: "journal" not in server.http.get("/health").json())
        assert read(server.http, CHAT, ASK, Reading()).texts() == {0: ANSWERS[0]}
    with run_server(config(tmp_path)) as server:
        again = read_again(server.http, f"{CHAT}/{left.answer_id}")
        assert again.texts() == {0: ANSWERS[0]}


def test_the_death_of_the_engine_is_not_the_end(tmp_path: Path) -> None:
    ask = {"messages": [{"role": "user", "content": "SLOW DIE"}]}
    with run_server(config(tmp_path)) as server:
        reading = read(server.http, CHAT, ask, Reading())
        told = reading.events.pop()
        assert (told.id, told.body["error"]["code"]) == ("", "engine_dead")
    with run_server(config(tmp_path), client=_Survivor) as server:
        read(server.http, CHAT, ask, reading)
    reading.check_numbers()
    assert reading.texts() == {0: ANSWERS[0]}


def test_the_death_of_the_engine_is_not_the_end_of_a_response(tmp_path: Path) -> None:
    with run_server(config(tmp_path)) as server:
        reading = read(server.http, RESPONSE, {"input": "SLOW DIE"}, Reading())
        told = reading.events.pop()
        assert (told.id, told.body["error"]["code"]) == ("", "engine_dead")
    with run_server(config(tmp_path), client=_Survivor) as server:
        path = f"{RESPONSE}/{reading.answer_id}?stream=true"
        rest = read_again(server.http, path, **{"Last-Event-ID": reading.last_id})
    numbers = [event.number for event in [*reading.events, *rest.events]]
    assert numbers == list(range(len(numbers)))
    assert rest.events[-1].body["response"]["output"][0]["content"][0]["text"] == ANSWERS[0]


class _Survivor(fake_engine.FakeClient):
    def steering(self, prompt: str) -> str:
        return prompt.replace("DIE", "")


def test_requests_that_fail_are_not_kept(tmp_path: Path) -> None:
    with run_server(config(tmp_path)) as server:
        wrong = server.http.post(CHAT, json={**ASK, "stream": True, "max_tokens": 10_000})
        assert wrong.status_code == 400
        failing = read(server.http, CHAT, {"messages": [{"role": "user", "content": "SLOW FAIL"}]}, Reading())
        assert "not finite" in failing.events[-1].body["error"]["message"]
    with run_server(config(tmp_path)) as server:
        assert not server.fake.live
        again = read_again(server.http, f"{CHAT}/{failing.answer_id}")
        assert again.events == failing.events


def test_a_time_limit_holds_across_servers(tmp_path: Path) -> None:
    with run_server(config(tmp_path)) as server:
        body = {"messages": [{"role": "user", "content": "STUCK"}], "timeout": 0.4}
        assert (
            server.http.post("/tokenize", json=ASK).status_code == 200
        )  # so that the process which prepares has started
        reading = read(server.http, CHAT, body, Reading(), 4)
    time.sleep(0.5)
    with run_server(config(tmp_path)) as server:
        read(server.http, CHAT, body, reading)
    assert reading.events[-1].body["error"]["code"] == "request_timeout"


def test_a_server_without_a_journal_says_so(server: RunningServer) -> None:
    answer = server.http.get(f"{CHAT}/chatcmpl-1")
    assert answer.status_code == 404
    assert "--request-journal" in answer.json()["error"]["message"]


def test_responses_in_the_background_go_on(tmp_path: Path) -> None:
    with run_server(config(tmp_path)) as server:
        made = server.http.post(RESPONSE, json={"input": "SLOW", "background": True}).json()
        streamed = read(server.http, RESPONSE, {"input": "SLOW", "background": True}, Reading(), 7)
    for _ in range(2):
        with run_server(config(tmp_path)) as server:
            _wait(lambda: _response(server, made["id"])["status"] == "completed")
            whole = _response(server, made["id"])
            path = f"{RESPONSE}/{streamed.answer_id}?stream=true"
            rest = read_again(server.http, f"{path}&starting_after=6")
            by_header = read_again(server.http, path, **{"Last-Event-ID": streamed.last_id})
            everything = read_again(server.http, path)
    assert whole["output"][0]["content"][0]["text"] == ANSWERS[0]
    assert (whole["id"], whole["created_at"]) == (made["id"], made["created_at"])
    assert by_header.events == rest.events
    told = [event.data for event in [*streamed.events, *rest.events]]
    assert told == [event.data for event in everything.events]
    assert [body["sequence_number"] for body in everything.bodies] == list(range(len(everything.events)))


def test_a_streamed_response_goes_on_without_its_client(tmp_path: Path) -> None:
    with run_server(config(tmp_path)) as server:
        reading = read(server.http, RESPONSE, {"input": "SLOW"}, Reading(), 5)
    with run_server(config(tmp_path)) as server:
        path = f"{RESPONSE}/{reading.answer_id}?stream=true"
        rest = read_again(server.http, path, **{"Last-Event-ID": reading.last_id})
        follow = {"input": "Hi", "previous_response_id": reading.answer_id}
        assert server.http.post(RESPONSE, json=follow).status_code == 200
    assert rest.events[-1].body["response"]["output"][0]["content"][0]["text"] == ANSWERS[0]
    numbers = [event.number for event in [*reading.events, *rest.events]]
    assert numbers == list(range(len(numbers)))


def test_stored_responses_outlive_the_server_until_they_are_deleted(tmp_path: Path) -> None:
    with run_server(config(tmp_path)) as server:
        first = server.http.post(RESPONSE, json={"input": "Hi"}).json()
        second = server.http.post(RESPONSE, json={"input": "Ho", "previous_response_id": first["id"]}).json()
    with run_server(config(tmp_path)) as server:
        assert _response(server, second["id"]) == second
        items = server.http.get(f"{RESPONSE}/{second['id']}/input_items").json()["data"]
        assert len(items) == 3
        assert server.http.delete(f"{RESPONSE}/{first['id']}").status_code == 200
    with run_server(config(tmp_path)) as server:
        assert server.http.get(f"{RESPONSE}/{first['id']}").status_code == 404
        assert _response(server, second["id"])["id"] == second["id"]


def _response(server: RunningServer, name: str) -> dict[str, Any]:
    answer = server.http.get(f"{RESPONSE}/{name}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def _wait(condition: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
