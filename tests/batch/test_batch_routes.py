"""/v1/files and /v1/batches with OpenAI's own client: kept over kills, owned by keys, bounded, and ended in time."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from core.api.config import EngineConfig
from core.api.messages import EngineOutput, EngineOutputs, EngineRequest
from core_apis.batches.line import SERVED
from core_apis.openapi import OPERATIONS
from core_config.served.server_config import BatchSettings, ServerConfig
from core_tokens.tokenizer import Tokenizer
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import FakeClient


def line(custom_id: str, url: str = "/v1/chat/completions", **body: Any) -> str:
    body = {"messages": [{"role": "user", "content": custom_id}]} | body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def settings(path: Path, **batches: Any) -> ServerConfig:
    return ServerConfig(batches=BatchSettings(directory=str(path), **batches), uvicorn_log_level="warning")


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[RunningServer]:
    with run_server(settings(tmp_path / "batches")) as running:
        yield running


def upload(client: openai.OpenAI, *lines: str) -> str:
    return client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch").id


def begin(client: openai.OpenAI, *lines: str, **fields: Any) -> str:
    fields = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | fields
    return client.batches.create(input_file_id=upload(client, *lines), **fields).id


def ended(client: openai.OpenAI, name: str, seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        batch = client.batches.retrieve(name)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)


def rows(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    found = [json.loads(row) for row in client.files.content(file_id).text.splitlines()]
    return {row["custom_id"]: row for row in found}


def test_a_batch_with_openais_client(serving: RunningServer) -> None:
    client = serving.client
    lines = [line(f"r{number}") for number in range(12)]
    name = begin(client, *lines, line("bad", temperature=-3), metadata={"a": "b"})
    batch = ended(client, name)
    assert batch.status == "completed" and batch.metadata == {"a": "b"}
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (13, 12, 1)
    answers = rows(client, batch.output_file_id)
    plain = client.chat.completions.create(
        model=answers["r0"]["response"]["body"]["model"], messages=[{"role": "user", "content": "r0"}]
    )
    assert set(answers) == {f"r{number}" for number in range(12)}
    body = answers["r0"]["response"]["body"]
    assert body["choices"][0]["message"]["content"] == plain.choices[0].message.content
    assert body["service_tier"] == "flex" and plain.service_tier is None
    refused = rows(client, batch.error_file_id)["bad"]
    assert refused["response"]["status_code"] == 400 and refused["error"] is None
    listed = [each.id for each in client.batches.list()]
    assert listed == [name]
    files = list(client.files.list())
    assert {each.purpose for each in files} == {"batch", "batch_output"} and len(files) == 3
    assert client.files.delete(batch.input_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(batch.input_file_id)
    assert client.batches.retrieve(name).status == "completed"


def test_a_file_with_a_problem_fails_as_a_whole_and_says_why(serving: RunningServer) -> None:
    client = serving.client
    cases = {
        "invalid_json": [line("a"), "{nope"],
        "duplicate_custom_id": [line("a"), line("a", temperature=0.5)],
        "mismatched_url": [line("a"), line("b", url="/v1/completions", prompt="x")],
        "invalid_body": [line("a", stream=True)],
        "invalid_input_file": [""],
    }
    for code, lines in cases.items():
        batch = ended(client, begin(client, *lines))
        assert batch.status == "failed" and batch.output_file_id is None
        problems = batch.errors.data
        assert problems[0].code == code and "/" not in problems[0].message.split("url is")[0], problems


def test_a_batch_is_cancelled_and_keeps_what_it_has(serving: RunningServer) -> None:
    client = serving.client
    name = begin(client, line("fast"), *[line(f"STUCK{number}") for number in range(3)])
    while not client.batches.retrieve(name).request_counts.completed:
        time.sleep(0.05)
    assert client.batches.cancel(name).status in ("cancelling", "cancelled")
    batch = ended(client, name)
    assert batch.status == "cancelled" and set(rows(client, batch.output_file_id)) == {"fast"}
    serving.wait_idle()
    assert client.batches.cancel(name).status == "cancelled"


class Cutting(FakeClient):
    """Ends each first answer early, as a server does that is put to sleep."""

    def __init__(self, tokenizer: Tokenizer, config: EngineConfig) -> None:
        super().__init__(tokenizer)
        self.seen: set[tuple[int, ...]] = set()

    async def run(self, request: EngineRequest) -> None:
        prompt = tuple(request.prompt_token_ids)
        if prompt in self.seen:
            await super().run(request)
            return
        self.seen.add(prompt)
        self.live.pop(request.key, None)
        output = EngineOutput(request.request_id, request.choice, 0, [self.tokenizer.encode("a")[-1]])
        output.finish_reason = "abort"
        self.on_outputs(EngineOutputs(0, [output], self.stats()))


def test_an_answer_that_a_sleep_cut_short_is_asked_for_again(tmp_path: Path) -> None:
    with run_server(settings(tmp_path / "b"), make_client=Cutting) as running:
        client = running.client
        batch = ended(client, begin(client, line("r0"), line("r1")))
        answers = rows(client, batch.output_file_id)
        ends = [row["response"]["body"]["choices"][0]["finish_reason"] for row in answers.values()]
        assert len(ends) == 2 and "abort" not in ends
        response = json.dumps({"custom_id": "r2", "url": "/v1/responses", "body": {"input": "hi"}})
        batch = ended(client, begin(client, response, endpoint="/v1/responses"))
        assert rows(client, batch.output_file_id)["r2"]["response"]["body"]["status"] != "failed"


def test_what_misses_the_window_is_expired(serving: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serving.client
    name = begin(client, line("fast"), line("STUCK"), completion_window="1h")
    while not client.batches.retrieve(name).request_counts.completed:
        time.sleep(0.02)
    now = time.time() + 3601
    monkeypatch.setattr("core_apis.batches.run.time", SimpleNamespace(time=lambda: now))
    batch = ended(client, name)
    assert batch.status == "expired" and batch.expired_at >= batch.expires_at
    assert set(rows(client, batch.output_file_id)) == {"fast"}
    assert rows(client, batch.error_file_id)["STUCK"]["error"]["code"] == "batch_expired"
    serving.wait_idle()


def test_a_batch_goes_on_with_the_next_server(tmp_path: Path) -> None:
    with run_server(settings(tmp_path / "b")) as first:
        name = begin(first.client, line("fast"), line("STUCK"))
        while not first.client.batches.retrieve(name).request_counts.completed:
            time.sleep(0.05)
    with run_server(settings(tmp_path / "b")) as second:
        client = second.client
        assert client.batches.retrieve(name).status == "in_progress"
        deadline = time.monotonic() + 10
        while not second.fake.live:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert len(second.fake.live) == 1, "the line that was done is not run again"
        client.batches.cancel(name)
        assert set(rows(client, ended(client, name).output_file_id)) == {"fast"}


def test_each_key_has_its_own(tmp_path: Path) -> None:
    config = ServerConfig(
        api_keys=("one", "two"), batches=BatchSettings(directory=str(tmp_path / "b")), uvicorn_log_level="warning"
    )
    with run_server(config) as running:
        one, two = running.openai(api_key="one"), running.openai(api_key="two")
        name = begin(one, line("a"))
        batch = ended(one, name)
        assert list(two.files.list()) == [] and list(two.batches.list()) == []
        for call in (
            lambda: two.batches.retrieve(name),
            lambda: two.batches.cancel(name),
            lambda: two.files.content(batch.output_file_id),
            lambda: two.files.delete(batch.input_file_id),
            lambda: two.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                call()
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "b").rglob("*") if path.suffix != ".partial"}
    assert modes == {0}


def test_files_are_bounded(tmp_path: Path) -> None:
    with run_server(settings(tmp_path / "b", max_bytes=1 << 20, max_requests=3)) as running:
        client = running.client
        with pytest.raises(openai.APIStatusError) as caught:
            client.files.create(file=("big", b"x" * (2 << 20)), purpose="batch")
        assert caught.value.status_code == 413 and "--batch-directory-size" in str(caught.value)
        batch = ended(client, begin(client, *[line(f"r{number}") for number in range(4)]))
        assert batch.status == "failed" and batch.errors.data[0].code == "too_many_requests"
    assert not list((tmp_path / "b").rglob("*.tmp"))


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        (
            "/v1/batches",
            {"input_file_id": "../../x", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
            404,
        ),
        ("/v1/batches", {"input_file_id": "file-1", "endpoint": "/v1/images", "completion_window": "24h"}, 400),
        ("/v1/batches", {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "31d"}, 400),
        ("/v1/batches", {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "soon"}, 400),
        (
            "/v1/batches",
            {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h", "x": 1},
            400,
        ),
    ],
)
def test_bad_bodies_are_a_sentence(serving: RunningServer, path: str, fields: Any, status: int) -> None:
    answer = serving.http.post(path, json=fields)
    assert answer.status_code == status and answer.json()["error"]["message"]


def test_bad_uploads_are_a_sentence(serving: RunningServer) -> None:
    http = serving.http
    form = {"content-type": "multipart/form-data; boundary=b"}
    part = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    for body, headers, status in (
        (b"{}", {"content-type": "application/json"}, 415),
        (b"", {"content-type": "multipart/form-data"}, 415),
        (b"", form, 400),
        (b"--b--", form, 400),
        (part + b"x", form, 400),
        (part + b"x\r\n--b--", form, 400),
        (part + b"x\r\n--bX", form, 400),
        (b"--b\r\n" + b"a" * 20_000, form, 400),
        (b"--b\r\n\r\n\r\nx\r\n--b--", form, 400),
        ((part + b"x\r\n") * 2 + b"--b--", form, 400),
        (b'--b\r\ncontent-disposition: form-data; name="n"\r\n\r\n' + b"y" * 70_000, form, 400),
        ((b'--b\r\ncontent-disposition: form-data; name="n"\r\n\r\n\r\n') * 40 + b"--b--", form, 400),
    ):
        answer = http.post("/v1/files", content=body, headers=headers)
        assert answer.status_code == status and answer.json()["error"]["message"], (body[:40], answer.text)
    for fields in (
        {},
        {"purpose": "assistants"},
        {"purpose": "batch", "expires_after[seconds]": "0"},
        {"purpose": "batch", "x": "y"},
    ):
        assert http.post("/v1/files", data=fields, files={"file": ("a", b"x")}).status_code == 400
    for name in ("x", "file-" + "0" * 24, "..%2f..%2fetc"):
        assert http.get(f"/v1/files/{name}").status_code == 404
        assert http.get(f"/v1/files/{name}/content").status_code == 404


def test_bytes_arrive_unchanged_however_they_are_cut(serving: RunningServer) -> None:
    data = b"\r\n--b\r\n-\r\r\n--\x00\xff" * 400 + b"\r\n--"
    name = serving.client.files.create(file=("odd", data), purpose="batch").id
    assert serving.client.files.content(name).content == data

    def pieces() -> Iterator[bytes]:
        body = (
            b'--q\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            b'--q\r\ncontent-disposition: form-data; name="file"; filename="o"\r\n\r\n' + data + b"\r\n--q--\r\n"
        )
        for start in range(0, len(body), 37):
            yield body[start : start + 37]

    answer = serving.http.post(
        "/v1/files", content=pieces(), headers={"content-type": "multipart/form-data; boundary=q"}
    )
    assert answer.status_code == 200, answer.text
    assert serving.client.files.content(answer.json()["id"]).content == data


def test_without_a_directory_the_argument_is_named() -> None:
    with run_server(ServerConfig(uvicorn_log_level="warning")) as server:
        answer = server.http.get("/v1/batches")
    assert answer.status_code == 404 and "--batch-directory" in answer.json()["error"]["message"]


def test_files_expire_and_pages_follow_each_other(serving: RunningServer) -> None:
    client = serving.client
    names = [upload(client, line(f"r{number}")) for number in range(3)]
    assert sorted(each.id for each in client.files.list(limit=1)) == sorted(names)
    short: httpx.Response = serving.http.post(
        "/v1/files",
        data={"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "1"},
        files={"file": ("a", b"x")},
    )
    time.sleep(1.1)
    assert serving.http.get(f"/v1/files/{short.json()['id']}").status_code == 404


def test_every_body_of_a_batch_has_a_class_and_a_timeout() -> None:
    for path in SERVED:
        body = OPERATIONS[path].body
        assert body is not None
        fields = body.__struct_fields__
        assert {"service_tier", "timeout"} <= set(fields), path
