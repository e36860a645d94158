"""Kept responses stay within their number, bytes and time, and conversations are put together from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.api.config import ServerLimits
from core.api.errors import RequestError
from core.serving.protocol.response_objects import MessageItem, OutputText, ResponseObject
from core.serving.responses.event_log import EventLog
from core.serving.responses.store import ResponseStore
from core.serving.responses.stored_response import StoredResponse


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def entry(name: str, previous: str | None = None, text: str = "text", *, ended: bool = True) -> StoredResponse:
    output: list[Any] = [MessageItem(f"msg_{name}", "completed", [OutputText(text)])]
    response = ResponseObject(
        id=name, created_at=0, status="completed", model="m", output=output, previous_response_id=previous
    )
    made = StoredResponse.of(None, response, [{"type": "message", "id": f"in_{name}", "content": name}], None)
    if ended:
        made.finish()
    return made


def store_of(clock: Clock | None = None, **limits: Any) -> ResponseStore:
    return ResponseStore(ServerLimits(**limits), clock or Clock())


def is_kept(store: ResponseStore, name: str) -> bool:
    try:
        store.get(None, name)
    except RequestError as error:
        assert error.status == 404
        return False
    return True


def test_the_longest_unused_goes_first() -> None:
    store = store_of(max_stored_responses=2)
    store.add(entry("a"))
    store.add(entry("b"))
    store.get(None, "a")
    store.add(entry("c"))
    assert [is_kept(store, name) for name in "abc"] == [True, False, True]
    assert store.items(None, ["msg_b", "msg_c"]).keys() == {"in_c", "msg_c"}


def test_bytes_are_counted_and_given_back() -> None:
    store = store_of(max_stored_response_bytes=20_000)
    for name in "abcd":
        store.add(entry(name, text="x" * 3000))
    assert len(store) == 2 and 0 < store.num_bytes <= 20_000
    for name in "cd":
        store.remove(store.get(None, name))
    assert store.num_bytes == 0 and len(store) == 0


def test_a_log_counts_too() -> None:
    store = store_of(max_stored_response_bytes=20_000)
    long = entry("a", ended=False)
    long.log = EventLog()
    long.log.append([b"x" * 30_000])
    long.finish()
    store.add(long)
    assert len(store) == 0


def test_time() -> None:
    clock = Clock()
    store = store_of(clock, stored_response_lifetime=10.0)
    store.add(entry("a"))
    store.add(entry("b"))
    clock.now = 8.0
    assert is_kept(store, "a")
    clock.now = 11.0
    assert is_kept(store, "a") and not is_kept(store, "b")
    assert len(store) == 1


def test_a_conversation_is_all_items_in_their_order_and_keeps_its_beginning_alive() -> None:
    store = store_of(max_stored_responses=3)
    store.add(entry("a"))
    store.add(entry("b", "a"))
    store.add(entry("other"))
    ids = [item["id"] for item in json.loads(store.history(None, "b"))]
    assert ids == ["in_a", "msg_a", "in_b", "msg_b"]
    store.add(entry("c", "b"))
    assert not is_kept(store, "other")
    assert [item["id"] for item in store.input_of(store.get(None, "c"))] == [*ids, "in_c"]


def test_a_conversation_that_has_lost_its_beginning() -> None:
    store = store_of()
    store.add(entry("a"))
    store.add(entry("b", "a"))
    store.remove(store.get(None, "a"))
    with pytest.raises(RequestError, match="The response 'a', on which 'b' builds, is not kept") as error:
        store.history(None, "b")
    assert error.value.status == 404


def test_what_belongs_to_another_key_is_not_there() -> None:
    store = store_of()
    mine = entry("a")
    mine.tenant = 1
    store.add(mine)
    for tenant in (None, 0, 2):
        with pytest.raises(RequestError) as error:
            store.get(tenant, "a")
        assert error.value.status == 404
        assert store.items(tenant, ["msg_a"]) == {}
    assert store.get(1, "a") is mine


async def test_a_log_is_followed_while_it_grows() -> None:
    log = EventLog()
    log.append([b"a", b"b"])
    readers = [log.follow(start) for start in (0, 1, 2)]
    assert await anext(readers[0]) == b"ab" and await anext(readers[1]) == b"b"
    log.append([b"c"])
    log.close()
    assert [await anext(reader) for reader in readers] == [b"c"] * 3
    assert [await anext(reader, None) for reader in readers] == [None] * 3
