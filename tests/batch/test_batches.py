"""Batch files: each line's result is the server's own answer; runs go on; nothing that is wrong stops the rest."""

import asyncio
import json
import os
import random
import resource
from pathlib import Path

import pytest

from core.api.errors import ConfigError, EngineDeadError, UserError
from core.api.pooling import PoolingConfig
from core_apis.batches.batch_file import look_through
from core_apis.batches.line import parsed
from core_apis.batches.results import BatchError, BatchResult, OutputError
from core_apis.pooling.bodies import PATHS
from core_commands.batch.results import Results
from core_commands.batch.run import ServerGoneError, run_batch
from core_commands.client.app_endpoint import AppEndpoint
from tests.apis.fake_engine import ANSWERS, client_of, make_engine
from tests.apis.scripted_engine import PoolingClient
from tests.client.apps import fake_endpoint


def request(custom_id, url="/v1/completions", **body):
    body = {"prompt": "hi", "max_tokens": 30} | body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def write(path, *lines):
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text(text + "\n")
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def look(path, size=1 << 20):
    return look_through(path, "model", size)


@pytest.mark.parametrize("path", [row.path for row in PATHS])
def test_a_batch_may_hold_requests_of_every_pooling_path(path):
    assert parsed(json.dumps(request("a", path)).encode(), 1).url == path


async def run(source, out, at_once=4, advance=lambda result: None, engine=None):
    batch = look(source)
    with Results(out) as results:
        async with fake_endpoint(engine=engine) as endpoint:
            await run_batch(endpoint, batch, results, at_once, advance)
        errors = results.finish(batch)
    return errors.total()


async def test_results_are_the_servers_answers_in_the_files_order(tmp_path):
    chat = request("chat", "/v1/chat/completions", messages=[{"role": "user", "content": "SLOW"}], n=2)
    del chat["body"]["prompt"]
    response = {"custom_id": "r", "url": "/v1/responses", "body": {"input": "hi", "max_output_tokens": 30}}
    refused = request("too-many", max_tokens=10**6)
    source = write(tmp_path / "in", chat, request("text"), "", response, refused)
    assert await run(source, tmp_path / "out") == 1
    rows = read(tmp_path / "out")
    assert [row["custom_id"] for row in rows] == ["chat", "text", "r", "too-many"]
    assert len({row["id"] for row in rows}) == 4
    assert [row["response"]["status_code"] for row in rows] == [200, 200, 200, 400]
    assert all(row["error"] is None for row in rows)
    bodies = [row["response"]["body"] for row in rows]
    assert [choice["message"]["content"] for choice in bodies[0]["choices"]] == list(ANSWERS[:2])
    assert bodies[1]["choices"][0]["text"] == ANSWERS[0]
    assert bodies[2]["output"][0]["content"][0]["text"] == ANSWERS[0]
    assert bodies[3]["error"]["param"] == "max_tokens"
    assert rows[1]["response"]["request_id"] == bodies[1]["id"]


async def test_vectors_and_scores_of_texts(tmp_path):
    embedded = request("e", "/v1/embeddings", input=["abba", "c"])
    ranked = request("r", "/v1/rerank", query="a", documents=["b", "ab"])
    for line in (embedded, ranked):
        del line["body"]["prompt"], line["body"]["max_tokens"]
    source = write(tmp_path / "in", embedded, ranked)
    config = PoolingConfig(kinds=("mean",), normalize=False, size=PoolingClient.SIZE)
    assert await run(source, tmp_path / "out", engine=make_engine(client=PoolingClient, pooling=config)) == 0
    vectors, documents = (row["response"]["body"] for row in read(tmp_path / "out"))
    assert [entry["embedding"] for entry in vectors["data"]] == [[2.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    assert [entry["index"] for entry in documents["results"]] == [1, 0]


BROKEN = [
    ("{", "invalid_json", None),
    ("[]", "invalid_json", None),
    ('"text"', "invalid_json", None),
    ("\\u0000", "invalid_json", None),
    ("[" * 5000, "invalid_json", None),
    ({"url": "/v1/completions", "body": {}}, "invalid_custom_id", None),
    (request(""), "invalid_custom_id", None),
    (request(7), "invalid_custom_id", None),
    (request("x" * 2000), "invalid_custom_id", None),
    ({**request("m"), "method": "GET"}, "invalid_method", "m"),
    (request("u", "/v1/completion"), "invalid_url", "u"),
    (request("e", "/v1/moderations"), "invalid_url", "e"),
    (request("y", "/v1/embeddings", input="a", encoding_format="bytes"), "invalid_body", "y"),
    ({"custom_id": "n", "body": {}}, "invalid_url", "n"),
    ({"custom_id": "b", "url": "/v1/completions"}, "invalid_body", "b"),
    ({"custom_id": "l", "url": "/v1/completions", "body": [1]}, "invalid_body", "l"),
    (request("s", stream=True), "invalid_body", "s"),
    (request("g", "/v1/responses", background=True), "invalid_body", "g"),
    ({**request("k"), "boddy": {}}, "invalid_line", "k"),
]


async def test_broken_lines_are_results_and_the_others_run(tmp_path):
    lines = []
    for number, (line, _, _) in enumerate(BROKEN):
        lines += [line, request(f"good-{number}")]
    source = write(tmp_path / "in", *lines)
    with source.open("ab") as file:
        file.write(b"\xff\xfe broken \xff\n")
        file.write(json.dumps(request("long", prompt="x" * (2 << 20))).encode() + b"\n")
        file.write(json.dumps(request("last")).encode())  # no line break at the end
    assert await run(source, tmp_path / "out") == len(BROKEN) + 2
    rows = read(tmp_path / "out")
    for number, (_, code, custom_id) in enumerate(BROKEN):
        row, good = rows[2 * number], rows[2 * number + 1]
        assert (row["error"]["code"], row["custom_id"], row["response"]) == (code, custom_id, None)
        assert row["error"]["line"] == 2 * number + 1
        assert len(row["error"]["message"]) < 400
        assert good["response"]["status_code"] == 200
    assert [row["error"] and row["error"]["code"] for row in rows[-3:]] == ["invalid_json", "line_too_long", None]
    assert "Did you mean '/v1/completions'" in rows[2 * 10]["error"]["message"]


def test_an_id_for_two_requests_is_refused_before_anything_runs(tmp_path):
    source = write(tmp_path / "in", request("a"), request("b"), request("a", prompt="other"), request("a"))
    with pytest.raises(ConfigError, match="line 3: the custom_id 'a' is that of line 1") as caught:
        look(source)
    assert len(caught.value.problems) == 1
    many = write(tmp_path / "many", *(request("a", prompt=str(number)) for number in range(100)))
    with pytest.raises(ConfigError, match="89 more lines"):
        look(many)


async def test_a_line_that_comes_twice_has_one_result(tmp_path):
    source = write(tmp_path / "in", request("a"), request("b"), request("a"))
    assert look(source).num_repeated == 1
    await run(source, tmp_path / "out")
    assert [row["custom_id"] for row in read(tmp_path / "out")] == ["a", "b"]


@pytest.mark.parametrize("text", [b"", b"\n\n  \n", b"\xef\xbb\xbf\n"])
def test_a_file_without_requests_is_refused(tmp_path, text):
    (tmp_path / "in").write_bytes(text)
    with pytest.raises(UserError, match="no request"):
        look(tmp_path / "in")
    with pytest.raises(UserError, match="cannot be read"):
        look(tmp_path / "absent")
    with pytest.raises(UserError, match="cannot be read"):
        look(tmp_path)


def test_a_byte_order_mark_and_other_line_breaks_are_read(tmp_path):
    line = json.dumps(request("a")).encode()
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbf" + line + b"\r\n" + line.replace(b'"a"', b'"b"') + b"\r\n")
    batch = look(tmp_path / "in")
    with batch.path.open("rb") as file:
        assert [batch.read(file, place).custom_id for place in batch.places] == ["a", "b"]


class Stop(Exception):
    pass


async def test_a_run_goes_on_where_it_ended_however_the_file_changed(tmp_path):
    draw = random.Random(1)
    requests = [request(f"r{number}", prompt=f"p{number}") for number in range(20)]
    source, out = write(tmp_path / "in", *requests), tmp_path / "out"
    asked = []
    for stop in (3, 7, 99):
        count = 0

        def advance(result, stop=stop):
            nonlocal count
            count += 1
            asked.append(result.custom_id)
            if count == stop:
                raise Stop

        try:
            await run(source, out, 1, advance)
        except Stop:
            assert not out.exists()
        if stop == 3:
            requests[0] = request("new", prompt="new")
        if stop != 99:
            draw.shuffle(requests)
            write(source, *requests)
    assert len(asked) == len(set(asked))  # nothing ran twice
    assert [row["custom_id"] for row in read(out)] == [one["custom_id"] for one in requests]
    assert not (tmp_path / "out.partial").exists()


async def run_without_end(tmp_path):
    """All requests are answered, and the results not put in place yet."""
    source, out = write(tmp_path / "in", request("a"), request("b")), tmp_path / "out"
    batch = look(source)
    with Results(out) as results:
        async with fake_endpoint() as endpoint:
            await run_batch(endpoint, batch, results, 1, lambda result: None)
    partial = tmp_path / "out.partial"
    return source, out, partial


async def test_a_result_that_was_cut_in_the_middle_runs_again(tmp_path):
    source, out, partial = await run_without_end(tmp_path)
    text = partial.read_bytes()
    for cut in range(0, len(text), 97):
        partial.write_bytes(text[:cut])
        assert await run(source, out) == 0
        assert [row["custom_id"] for row in read(out)] == ["a", "b"]


async def test_a_thousand_lines_have_one_result_each_whatever_they_ask(tmp_path):
    draw = random.Random(7)
    kinds = [
        lambda name: request(name, max_tokens=3),
        lambda name: request(name, "/v1/chat/completions", messages=[{"role": "user", "content": name}]),
        lambda name: request(name, max_tokens=10**6),
        lambda name: request(name, "/v1/nowhere"),
        lambda name: request(name, prompt="FAIL"),
    ]
    lines = [draw.choice(kinds)(f"r{number}") for number in range(1000)]
    source, out = write(tmp_path / "in", *lines), tmp_path / "out"
    count = 0

    def advance(result):
        nonlocal count
        count += 1
        if count == 400:
            raise Stop

    with pytest.raises(Stop):
        await run(source, out, 64, advance)
    assert await run(source, out, 64) > 0
    rows = read(out)
    assert [row["custom_id"] for row in rows] == [line["custom_id"] for line in lines]
    assert all((row["response"] is None) != (row["error"] is None) for row in rows)
    assert len({row["id"] for row in rows}) == 1000


async def test_texts_are_embedded_and_ranked(tmp_path):
    engine = make_engine(client=PoolingClient, pooling=PoolingConfig(kinds=("mean",), normalize=False, size=4))
    texts = {"custom_id": "e", "url": "/v1/embeddings", "body": {"input": ["abba", "cd"]}}
    ranked = {"custom_id": "r", "url": "/v1/rerank", "body": {"query": "a", "documents": ["b", "a"]}}
    wrong = {"custom_id": "w", "url": "/v1/embeddings", "body": {"input": []}}
    source = write(tmp_path / "in", texts, ranked, wrong)
    assert await run(source, tmp_path / "out", engine=engine) == 1
    embedded, found, refused = (row["response"] for row in read(tmp_path / "out"))
    assert [one["embedding"] for one in embedded["body"]["data"]] == [[2, 2, 0, 0], [0, 0, 1, 1]]
    assert [one["index"] for one in found["body"]["results"]] == [1, 0]
    assert refused["status_code"] == 400


def test_a_pipe_is_refused_since_it_is_read_twice(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, json.dumps(request("a")).encode())
    os.close(writer)
    with pytest.raises(UserError, match="a batch is read twice"):
        look(Path(f"/dev/fd/{reader}"))
    os.close(reader)


async def test_a_result_that_did_not_fit_leaves_no_part_behind(tmp_path):
    source, out = write(tmp_path / "in", request("a"), request("b")), tmp_path / "out"
    places = look(source).places
    small = BatchResult("one", "b", None, BatchError("x", "y", 1))
    large = BatchResult("two", "a", None, BatchError("x", "y" * 4000, 1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Results(out) as results:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            with pytest.raises(OutputError, match="there is no result yet"):
                results.add(places[0], large)
            results.add(places[1], small)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with Results(out) as results:
        assert [results.has(place) for place in places] == [False, True]


async def test_a_damaged_end_runs_again(tmp_path):
    source, out, partial = await run_without_end(tmp_path)
    first = partial.read_bytes().splitlines(keepends=True)[0]
    partial.write_bytes(first + b"\0" * 300 + b"\n")  # as a machine that lost its power leaves it
    done = []
    assert await run(source, out, advance=lambda result: done.append(result.custom_id)) == 0
    assert done == ["b"]


async def test_a_full_disk_keeps_what_is_done(tmp_path):
    requests = [request(f"r{number}") for number in range(30)]
    source, out = write(tmp_path / "in", *requests), tmp_path / "out"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        with pytest.raises(OutputError, match=r"results are kept in .*out\.partial"):
            await run(source, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not out.exists()
    done = []
    assert await run(source, out, advance=lambda result: done.append(result.custom_id)) == 0
    assert 0 < len(done) < 30
    assert [row["custom_id"] for row in read(out)] == [one["custom_id"] for one in requests]


async def test_a_full_disk_at_the_end_keeps_all(tmp_path):
    requests = [request(f"r{number}", prompt="x" * 200) for number in range(4)]
    source, out = write(tmp_path / "in", *requests), tmp_path / "out"
    batch = look(source)
    with Results(out) as results:
        async with fake_endpoint() as endpoint:
            await run_batch(endpoint, batch, results, 2, lambda result: None)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            with pytest.raises(OutputError, match="4 results are kept"):
                results.finish(batch)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.partial"]
    assert await run(source, out, advance=lambda result: pytest.fail("all were done")) == 0


def test_two_runs_do_not_write_one_file(tmp_path):
    with Results(tmp_path / "out"), pytest.raises(UserError, match="another run writes there"):
        Results(tmp_path / "out")
    assert not (tmp_path / "out.partial").exists()  # nothing was in it


def test_a_file_of_others_is_left_alone(tmp_path):
    (tmp_path / "out.partial").write_text("my notes\n")
    with pytest.raises(UserError, match="not what a run leaves"):
        Results(tmp_path / "out")
    assert (tmp_path / "out.partial").read_text() == "my notes\n"


async def test_the_death_of_the_engine_ends_the_run_and_keeps_results(tmp_path):
    source = write(tmp_path / "in", request("a"), request("b", prompt="DIE"), request("c"))
    with pytest.raises(EngineDeadError, match="signal 9"):
        await run(source, tmp_path / "out", at_once=1)
    assert (tmp_path / "out.partial").read_bytes().count(b"\n") == 1


async def test_an_answer_that_breaks_off_is_a_result_and_the_others_run(tmp_path):
    source = write(tmp_path / "in", request("a", prompt="breaks"), request("b"))
    batch = look(source)

    async def app(scope, receive, send):
        is_first = (await receive())["body"] == first
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if not is_first:
            await send({"type": "http.response.body", "body": b'{"id": "x"}'})

    first = json.dumps(request("a", prompt="breaks")["body"]).encode()
    with Results(tmp_path / "out") as results:
        await run_batch(AppEndpoint(app), batch, results, 1, lambda result: None)
        assert list(results.finish(batch)) == ["the engine of this command: the answer broke off."]
    rows = read(tmp_path / "out")
    assert rows[0]["error"]["code"] == "no_answer" and rows[0]["response"] is None
    assert rows[1]["response"] == {"status_code": 200, "request_id": "x", "body": {"id": "x"}}


def scripted(*answers):
    """An application that answers each POST with the next (status, headers, body); None: it breaks off."""
    left = list(answers)
    bodies = []

    async def app(scope, receive, send):
        body = (await receive())["body"]
        if scope["method"] == "GET":
            answer = (200, {}, b'{"data": []}') if left else None
        else:
            bodies.append(json.loads(body))
            answer = left.pop(0)
        if answer is not None:
            status, headers, text = answer
            pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": pairs})
            await send({"type": "http.response.body", "body": text})

    return AppEndpoint(app), bodies


async def test_other_servers_answer_as_they_like(tmp_path, monkeypatch):
    monkeypatch.setattr("core_commands.batch.run.DEFAULT_WAIT_SECONDS", 0.01)
    endpoint, bodies = scripted(
        (429, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, b'{"error": "slow down"}'),
        (200, {}, b'{\n  "id": 7,\n  "usage": {"completion_tokens": null}\n}\n'),
        (502, {}, b"<html>bad gateway</html>"),
        None,
        (400, {}, b'{"detail": "no such thing"}'),
    )
    source = write(tmp_path / "in", request("a"), request("b"), request("c", model="mine"))
    batch = look(source)
    with Results(tmp_path / "out") as results:
        await run_batch(endpoint, batch, results, 1, lambda result: None, default_model="theirs")
        errors = results.finish(batch)
    rows = read(tmp_path / "out")
    assert [row["custom_id"] for row in rows] == ["a", "b", "c"]
    assert rows[0]["response"]["body"] == {"id": 7, "usage": {"completion_tokens": None}}
    assert rows[1]["error"]["code"] == "no_answer"
    assert errors["no such thing"] == 1 and errors.total() == 2
    assert [body["model"] for body in bodies] == ["theirs"] * 4 + ["mine"]


async def test_a_server_that_is_gone_ends_the_run_and_keeps_results(tmp_path):
    endpoint, _ = scripted((200, {}, b'{"id": "x"}'), None)
    batch = look(write(tmp_path / "in", request("a"), request("b"), request("c")))
    with Results(tmp_path / "out") as results, pytest.raises(ServerGoneError, match="broke off"):
        await run_batch(endpoint, batch, results, 1, lambda result: None)
    assert (tmp_path / "out.partial").read_bytes().count(b"\n") == 1


async def test_a_busy_server_is_asked_again(tmp_path, monkeypatch):
    from core.api.config import SchedulerConfig

    waits = []
    sleep = asyncio.sleep

    async def short(seconds, *rest):
        waits.append(seconds)
        await sleep(min(seconds, 0.01), *rest)

    monkeypatch.setattr("core_commands.batch.run.asyncio.sleep", short)
    engine = make_engine(scheduler=SchedulerConfig(max_num_queued_reqs=1))
    source = write(tmp_path / "in", *(request(f"r{number}", prompt="SLOW") for number in range(4)))
    assert await run(source, tmp_path / "out", engine=engine) == 0
    assert [seconds for seconds in waits if seconds >= 1], "nobody was sent back"
    assert not client_of(engine).live
