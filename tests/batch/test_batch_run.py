"""One line of a batch: what is read of it, and of its answer, outside the event loop."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from core_apis.batches import run
from core_apis.batches.batch_file import Place
from core_apis.batches.line import parsed
from core_apis.batches.results import BatchResult
from core_apis.protocol.batches import BatchObject

LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": "hi"}}'
BATCH = BatchObject(
    id="batch_1",
    endpoint="/v1/embeddings",
    input_file_id="file-1",
    completion_window="24h",
    status="in_progress",
    created_at=0,
    expires_at=2_000_000_000,
)


@pytest.mark.parametrize("count", [4, 40_000])
def test_long_answers_are_read_outside_the_event_loop(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A line may ask for as many vectors as its model takes; reading their megabytes would hold up all streams."""
    told = b'{\n "id": "e1",\n "data": [' + b"0.125," * count + b"0.5]}"
    threads: list[int] = []
    reading = run._in_one_line

    def noted(answer: Any) -> bytes:
        threads.append(threading.get_ident())
        return reading(answer)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": told})

    async def answered() -> BatchResult:
        around = run.Surroundings(app, None, asyncio.Semaphore(1), 1, "m", 1 << 20)  # type: ignore[arg-type]
        result = BatchResult("r", "a", None, None)
        await run.BatchRun(around, "owner", None, BATCH)._answer(parsed(LINE, 1), Place(1, 0, len(LINE), b"d"), result)
        return result

    monkeypatch.setattr(run, "_in_one_line", noted)
    found = asyncio.run(answered())
    assert found.response is not None and found.error is None
    assert b"\n" not in bytes(found.response.body)
    assert msgspec.json.decode(bytes(found.response.body)) == msgspec.json.decode(told)
    assert (threads[0] == threading.get_ident()) == (len(told) < run.LONG_LINE)


@pytest.mark.parametrize("told", [b"{", b'{"a": "\xff"}', b"[" * 5000])
def test_answers_that_are_no_json_are_told_as_such(told: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 502, "headers": []})
        await send({"type": "http.response.body", "body": told})

    async def answered() -> BatchResult:
        around = run.Surroundings(app, None, asyncio.Semaphore(1), 1, "m", 1 << 20)  # type: ignore[arg-type]
        result = BatchResult("r", "a", None, None)
        await run.BatchRun(around, "owner", None, BATCH)._answer(parsed(LINE, 1), Place(1, 0, len(LINE), b"d"), result)
        return result

    found = asyncio.run(answered())
    assert found.response is None and found.error is not None
    assert (found.error.code, "502 and no JSON" in found.error.message) == ("no_answer", True)
