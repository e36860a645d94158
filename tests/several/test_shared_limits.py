"""Limits of an API key over all models of one server: what it uses at one model it has not at another."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from core.api.errors import RequestError, UserError
from core_apis.batches.elsewhere import CommonFiles
from core_apis.batches.store import BatchStore, owner_of
from core_apis.sessions.store import Sessions
from core_config.served.server_config import BatchSettings, ServerConfig
from core_formats.server_limits import ServerLimits
from core_frontend.queue.common import Column, CommonCounts
from core_frontend.queue.limit import QueueLimit
from core_frontend.queue.share import ShareLimits
from tests.several.test_application import message, models, run

KEYS = ("first key", "second key")


class Servers:
    """Two servers, the second with its keys in another order, so that numbers of keys mean nothing."""

    def __init__(self, folder, **limits):
        self.counts = [CommonCounts(str(folder / "keys"), keys) for keys in (KEYS, KEYS[::-1])]
        self.queues = [QueueLimit(0, 0, per_key=ShareLimits(**limits)) for _ in self.counts]
        for queue, counts in zip(self.queues, self.counts, strict=True):
            queue.share_with(counts)


def refused(call, *given, **named):
    with pytest.raises(RequestError) as caught:
        call(*given, **named)
    return caught.value


def test_a_key_that_used_its_limit_at_one_model_is_refused_at_another(tmp_path):
    servers = Servers(tmp_path, at_once=2)
    first, second = servers.queues
    first.enter({"a": 5, "b": 5}, 0)
    error = refused(second.check, 1)
    assert (error.status, error.code) == (429, "key_limit_reached") and error.retry_after >= 1
    assert "2 requests are under way already; at most 2 may be (--max-num-reqs-per-key)" in str(error)
    second.check(0)  # the other key has all of its own
    first.end("a")
    with second.arriving(1):
        assert refused(first.check, 0).status == 429, "one whose body is being read counts as well"
    second.enter({"c": 5}, 1)
    refused(first.check, 0)
    first.end("b")
    second.end("c")
    first.check(0)


def test_waiting_requests_and_their_tokens_count_together_and_the_batch_class_apart(tmp_path):
    servers = Servers(tmp_path, requests=2, tokens=100)
    first, second = servers.queues
    first.enter({"a": 90}, 0)
    assert "90 prompt tokens wait already" in str(refused(second.enter, {"b": 20}, 1))
    second.enter({"b": 20}, 1, flex=True)
    second.enter({"c": 10}, 1)
    assert "2 requests wait already" in str(refused(first.check, 0))
    assert "20 prompt tokens wait already" in str(refused(first.enter, {"d": 90}, 0, flex=True))
    first.leave("a")
    first.check(0)
    first.enter({"e": 90}, 0)


def test_of_two_that_come_at_once_not_both_are_taken(tmp_path):
    servers = Servers(tmp_path, at_once=1)
    first, second = servers.queues
    check, taken = second.check, []

    def late(key=None):
        """The other server takes the place between the check and the reservation."""
        check(key)
        taken.append(first.arriving(0))
        taken[0].__enter__()

    second.check = late
    with pytest.raises(RequestError), second.arriving(1):
        pass
    taken[0].__exit__(None, None, None)
    second.check = check
    with second.arriving(1):
        pass


def test_what_a_server_that_was_killed_had_counted_is_forgotten(tmp_path):
    servers = Servers(tmp_path, at_once=1)
    code = (
        "import sys; from core_frontend.queue.common import *; "
        "c = CommonCounts(sys.argv[1], [sys.argv[2]]); c.set(0, Column.AT_ONCE, 1); print('up', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "keys"), KEYS[0]]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"up\n"
        refused(servers.queues[0].check, 0)
        other.kill()
        other.wait()
        servers.queues[0].check(0)
    assert len(list((tmp_path / "keys").iterdir())) == 2


def test_sessions_and_files_count_together(tmp_path):
    first, second = Servers(tmp_path).counts
    now = [100.0]
    limits = ServerLimits(max_sessions_per_key=1, kv_session_lifetime=1e6)
    tables = [Sessions(limits, lambda: now[0], common=each) for each in (first, second)]
    session = tables[0].begin(0, "a")
    assert "1 sessions" in str(refused(tables[1].begin, 1, "b"))
    tables[1].end(0, tables[1].begin(0, "other key"))
    tables[0].end(0, session)
    tables[1].begin(1, "b")

    stores = []
    for name, counts, keys in (("f", first, KEYS), ("s", second, KEYS[::-1])):
        owners = {owner_of(key): number for number, key in enumerate(keys)}
        stores.append(
            BatchStore(BatchSettings(directory=str(tmp_path / name), max_bytes=100), CommonFiles(counts, owners))
        )
    for store in stores:
        (store.root / owner_of(KEYS[0])).mkdir()
    (stores[0].root / owner_of(KEYS[0]) / "x.data").write_bytes(bytes(70))
    assert [store.room(owner_of(KEYS[0])) for store in stores] == [30, 30]
    (stores[1].root / owner_of(KEYS[0]) / "y.data").write_bytes(bytes(40))
    assert [store.room(owner_of(KEYS[0])) for store in (stores[1], stores[0])] == [-10, -10]
    assert stores[0].room(owner_of(KEYS[1])) == 100


def test_what_lies_in_the_directory_by_mistake_is_passed_over(tmp_path):
    (tmp_path / "keys").mkdir(mode=0o700)
    for number, data in enumerate((b"", b"corecnt1" + b"\xff" * 8, b"corecnt9" + bytes(8), os.urandom(300))):
        (tmp_path / "keys" / f"{number}.counts").write_bytes(data)
    os.mkfifo(tmp_path / "keys" / "pipe.counts")
    servers = Servers(tmp_path, at_once=1)
    servers.queues[0].enter({"a": 1}, 0)
    refused(servers.queues[1].check, 1)
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(UserError, match=r"--shared-limits .*others may enter it"):
        CommonCounts(str(tmp_path / "open"), KEYS)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--shared-limits .*expected a directory"):
        CommonCounts(str(tmp_path / "file"), KEYS)


def test_requests_that_wait_for_a_sleeping_model_count_too(tmp_path):
    async def scenario():
        server = ServerConfig(api_keys=KEYS)
        places = Servers(tmp_path, at_once=1).queues
        async with models("a", "b", server=server, places=places[0]) as (client, children, _):
            headers = {"Authorization": f"Bearer {KEYS[0]}"}
            chat = "/v1/chat/completions"
            going = asyncio.Event()
            children["a"].parts = [going]
            running = asyncio.ensure_future(client.post(chat, json={"model": "a"}, headers=headers))
            while not children["a"].seen:
                await asyncio.sleep(0)
            waiting = asyncio.ensure_future(client.post(chat, json={"model": "b"}, headers=headers))
            while not len(places[0]):
                await asyncio.sleep(0)
            answer = await client.post(chat, json={"model": "a"}, headers=headers)
            assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
            assert "--max-num-reqs-per-key" in message(answer)
            assert refused(places[1].check, 1).status == 429, "models' servers see it"
            other = {"Authorization": f"Bearer {KEYS[1]}"}
            listing = asyncio.ensure_future(client.get("/v1/files?model=b", headers=headers))
            going.set()
            answers = await asyncio.gather(running, waiting, listing)
            assert [each.status_code for each in answers] == [200] * 3, "a list of files is no work of a model"
            assert (await client.post(chat, json={"model": "b"}, headers=other)).status_code == 200
            places[1].check(1)

    run(scenario())


def test_the_numbers_of_a_row_fit_their_file(tmp_path):
    first, second = Servers(tmp_path).counts
    for column in Column:
        first.set(1, column, 1 + column)
    assert [second.others(0, column) for column in Column] == [1 + column for column in Column]
    assert [second.others(1, column) for column in Column] == [0] * len(Column)
