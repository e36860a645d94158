"""Kept responses stay within their number, bytes and time, and conversations are put together from them."""

import asyncio
import json
from typing import Any

import pytest

from core.api.errors import RequestError
from core_apis.protocol.response_objects import MessageItem, OutputText, ResponseObject
from core_apis.responses.event_log import EventLog
from core_apis.responses.items import KeptItem
from core_apis.responses.store import ResponseStore
from core_apis.responses.stored_response import StoredResponse
from core_formats.server_limits import ServerLimits


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def entry(
    name: str, previous: str | None = None, text: str = "text", *, ended: bool = True, tenant: int | None = None
) -> StoredResponse:
    output: list[Any] = [MessageItem(f"msg_{name}", "completed", [OutputText(text)])]
    response = ResponseObject(
        id=name, created_at=0, status="completed", model="m", output=output, previous_response_id=previous
    )
    item = {"type": "message", "id": f"in_{name}", "content": name}
    made = StoredResponse.of(tenant, response, [KeptItem(item["id"], json.dumps(item).encode())], None)
    if ended:
        made.finish()
    return made


def store_of(clock: Clock | None = None, num_tenants: int = 1, **limits: Any) -> ResponseStore:
    return ResponseStore(ServerLimits(**limits), clock or Clock(), num_tenants=num_tenants)


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
    assert store.items(None, ["msg_b", "msg_c"]).keys() == {"msg_c"}


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
    assert [item.id for item in store.input_of(store.get(None, "c"))] == [*ids, "in_c"]


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
    mine = entry("a", tenant=1)
    store.add(mine)
    for tenant in (None, 0, 2):
        with pytest.raises(RequestError) as error:
            store.get(tenant, "a")
        assert error.value.status == 404
        assert store.items(tenant, ["msg_a"]) == {}
    assert store.get(1, "a") is mine


def test_a_tenant_fills_its_own_share_and_nobody_elses() -> None:
    store = store_of(num_tenants=2, max_stored_responses=6, max_stored_response_bytes=40_000)
    for name in "ab":
        store.add(entry(name, tenant=0))
    for number in range(20):
        store.add(entry(f"flood {number}", text="x" * 3000, tenant=1))
    assert [store.get(0, name).id for name in "ab"] == ["a", "b"]
    with pytest.raises(RequestError):
        store.get(1, "flood 0")
    assert len(store) < 6 and store.num_bytes <= 40_000


def test_items_of_one_name_are_each_tenants_own() -> None:
    store = store_of(num_tenants=2)
    store.add(entry("a", text="of 0", tenant=0))
    other = entry("b", text="of 1", tenant=1)
    other.output = tuple(KeptItem("msg_a", item.data) for item in other.output)
    store.add(other)
    assert b"of 0" in store.items(0, ["msg_a"])["msg_a"].data
    assert b"of 1" in store.items(1, ["msg_a"])["msg_a"].data


async def test_background_responses_of_one_tenant_leave_room_for_others() -> None:
    store = store_of(num_tenants=2, max_stored_responses=4)
    for name in "abc":
        store.check_background(0)
        running = entry(name, ended=False, tenant=0)
        running.task = asyncio.ensure_future(asyncio.sleep(60))
        store.add(running)
        if name == "b":
            break
    with pytest.raises(RequestError) as error:
        store.check_background(0)
    assert error.value.status == 429 and error.value.retry_after
    store.check_background(1)
    await store.close()


def test_what_is_kept_is_never_decoded() -> None:
    store = store_of()
    kept = entry("a")
    kept.items = (KeptItem("in_a", b"no JSON"), KeptItem("in_b", b"{"))
    store.add(kept)
    assert [item.data for item in store.input_of(kept)] == [b"no JSON", b"{"]
    assert list(store.items(None, ["in_b", "in_b"])) == ["in_b"], "the one item alone"
    assert store.history(None, "a").startswith(b"[no JSON,{,")


def test_a_response_is_removed_once() -> None:
    store = store_of()
    kept = entry("a")
    store.add(kept)
    assert store.remove(kept) and not store.remove(kept)
    assert len(store) == store.num_bytes == 0


async def test_a_log_is_followed_while_it_grows() -> None:
    log = EventLog()
    log.append([b"a", b"b"])
    readers = [log.follow(start) for start in (0, 1, 2)]
    assert await anext(readers[0]) == b"ab" and await anext(readers[1]) == b"b"
    log.append([b"c"])
    log.close()
    assert [await anext(reader) for reader in readers] == [b"c"] * 3
    assert [await anext(reader, None) for reader in readers] == [None] * 3
