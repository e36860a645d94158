"""Requests that a server records, and what `core diff` finds in them with the same engine and with another one."""

import asyncio
import json
import logging
import stat
from types import SimpleNamespace
from typing import Any

import pytest

from core_apis.receipts import traffic_recorder
from core_apis.traffic import recorder as recording
from core_apis.traffic.records import read_traffic, unpacked
from core_commands.replay.comparison import Comparison, Recorded, compare
from core_config.served.server_config import RecordSettings, ServerConfig
from tests.receipts import checking
from tests.receipts.test_diff_parts import RECORD

BODIES: list[tuple[str, dict[str, Any]]] = [
    (checking.CHAT, {"messages": [{"role": "user", "content": "fox"}], "max_tokens": 20, "temperature": 0.9, "n": 2}),
    (checking.CHAT, {"messages": [{"role": "user", "content": "dog"}], "max_tokens": 15, "stream": True}),
    (checking.TEXT, {"prompt": ["the", "sun"], "max_tokens": 12, "temperature": 1.0}),
    (checking.MESSAGES, {"messages": [{"role": "user", "content": "river"}], "max_tokens": 10}),
    (
        checking.CHAT,
        {
            "messages": [{"role": "user", "content": "json"}],
            "max_tokens": 90,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": checking.SCHEMA}},
        },
    ),
]


async def send(engine, path, body, headers=None):
    async with engine._endpoint.ask("POST", path, json.dumps(body).encode(), headers) as answer:
        return answer.status, b"".join([part async for part in answer.parts()])


@pytest.fixture(scope="module")
def found(tiny_llama, tmp_path_factory):
    """What one engine records of itself, and how it compares with itself and with one of changed answers."""
    folder = tmp_path_factory.mktemp("traffic") / "records"
    results: dict[str, Any] = {"folder": folder}

    def recorder(engine, **settings):
        server = ServerConfig(recording=RecordSettings(directory=str(folder), **settings))
        return traffic_recorder(server, engine.context.engine, None)

    async def work(engine):
        context = engine.context
        context.traffic = recorder(engine, share=1.0)
        answers = [await send(engine, path, body) for path, body in BODIES]
        assert [status for status, _ in answers] == [200] * len(BODIES)
        results["receipts shown"] = [b"receipt" in data for _, data in answers]
        results["objected"] = (await send(engine, *BODIES[0], {"X-No-Record": "1"}))[0]
        results["refused"] = (await send(engine, checking.CHAT, {"messages": "x"}))[0]
        await asyncio.to_thread(context.traffic.close)
        context.traffic = None
        records = list(read_traffic(str(folder)))
        results["records"] = records
        same = results["same"] = Comparison("", "")
        for number, record in enumerate(records):
            await compare(engine, Recorded.of(number, record), same)
        changed = results["changed"] = Comparison("", "")
        for number, record in enumerate(records):
            one = Recorded.of(number, record)
            index, tokens, reason = one.answers[0][0]
            tokens = [*tokens]
            tokens[3] = tokens[3] % 50 + 60
            tokens[8] = tokens[8] % 50 + 60
            one.answers[0] = [(index, tokens, reason), *one.answers[0][1:]]
            await compare(engine, one, changed)
        context.traffic = recorder(engine, share=1.0, max_bytes=1 << 20)
        for _ in range(30):
            await send(engine, checking.TEXT, {"prompt": "a", "max_tokens": 1, "user": "u" * 60_000})
        await asyncio.to_thread(context.traffic.close)
        context.traffic = None
        results["size"] = sum(path.stat().st_size for path in folder.glob("*.journal"))

    checking.run_on_engine(["--model", str(tiny_llama), "--max-model-len", "512"], work)
    return results


@pytest.mark.slow
def test_requests_are_recorded_with_their_tokens_and_no_receipt_is_shown(found):
    assert found["receipts shown"] == [False] * len(BODIES)
    assert [record.path for record in found["records"]] == [path for path, _ in BODIES]
    assert [json.loads(record.body) for record in found["records"]] == [body for _, body in BODIES]
    lengths = [[len(unpacked(row.token_ids)) for row in prompt.choices] for prompt in found["records"][0].prompts]
    assert lengths == [[20, 20]] and len(found["records"][2].prompts) == 2


def test_a_client_can_object_and_a_refused_request_is_not_recorded(found):
    assert (found["objected"], found["refused"]) == (200, 400)
    assert len(found["records"]) == len(BODIES)


def test_only_the_owner_may_read_them_and_their_size_is_bounded(found):
    assert stat.S_IMODE(found["folder"].stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in found["folder"].iterdir()} == {0o600}
    assert found["size"] <= (1 << 20) + 200_000


def test_the_same_engine_differs_in_nothing(found):
    assert (found["same"].num_requests, found["same"].rows) == (len(BODIES), [])


def test_two_changed_tokens_are_both_found_though_the_first_changes_all_that_follows(found):
    rows = found["changed"].rows
    assert [row.number for row in rows] == list(range(len(BODIES)))
    for row in rows[:4]:
        places = {token.index for _, choice, token in row.tokens if choice == 0}
        assert {3, 8} <= places, row
    assert all(row.values for row in rows)


def test_a_share_is_recorded(tmp_path):
    request = SimpleNamespace(headers={}, url=SimpleNamespace(path="/v1/completions"))
    server = ServerConfig(api_keys=("key",))
    made = recording.TrafficRecorder(RecordSettings(directory=str(tmp_path / "r"), share=0.25), server, None)
    made._random.seed(1)
    count = sum(made.begin(request, 0, "chat") is not None for _ in range(2000))
    assert 430 < count < 570
    assert made.begin(request, 0, "embeddings") is None
    made.close()


def test_a_full_disk_costs_records_and_is_logged(monkeypatch, tmp_path, caplog):
    server = ServerConfig()
    made = recording.TrafficRecorder(RecordSettings(directory=str(tmp_path / "r")), server, None)

    def full(data):
        raise OSError(28, "No space left on device")

    # The engine of this file has set up logging, which ends at the handlers of each distribution.
    monkeypatch.setattr(logging.getLogger("core_apis"), "propagate", True)
    monkeypatch.setattr(made._segments, "append", full)
    made.write(RECORD)
    made.close()
    assert "could not be recorded so far: 1; the last one since No space left on device." in caplog.text
