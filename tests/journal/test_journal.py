"""The journal on disk: what is read back is what was written, whatever happens to files and disk in between."""

import asyncio
import contextlib
import errno
import os
import random
import stat
import threading
from pathlib import Path

import pytest

from core.api.errors import RequestError, UserError
from core.api.messages import EngineOutput, TokenLogprobs
from core_apis.journal import segments as segment_files
from core_apis.journal import writer as writing
from core_apis.journal.directory import JournalDirectory
from core_apis.journal.journal import EntryLog, Journal, now
from core_apis.journal.records import Accepted, Ended, FileHead, Kind, accepted_frame, framed, frames
from core_apis.journal.segments import Segments

SIZE = 1 << 20


def accepted(name: str, body: bytes = b"body") -> Accepted:
    return Accepted("chat", name, b"tenant", 7, 8.5, "user", "origin", body)


def ended(name: str, kept: bytes = b"kept") -> Ended:
    return Ended("chat", name, b"tenant", now(), kept)


def output(start: int, token: int) -> EngineOutput:
    logprobs = [TokenLogprobs([token, 3], [-0.1 * token, -2.0], [1, 2])]
    return EngineOutput("live-id", 1, start, [token], logprobs, num_cached_tokens=4, handle=99)


def opened(path: Path, size: int = SIZE) -> Journal:
    journal = Journal(str(path), size)
    journal.start()
    return journal


def accept(journal: Journal, name: str, body: bytes = b"body") -> EntryLog:
    return journal.accept(accepted_frame(journal.next_number(), accepted(name, body)))


async def begun(journal: Journal, name: str, num_tokens: int, body: bytes = b"body") -> EntryLog:
    log = accept(journal, name, body)
    log.begun(0, 11)
    for start in range(num_tokens):
        log.given(0, [output(start, start + 5)])
    await journal.written()
    return log


def tokens(journal: Journal, name: str) -> list[int]:
    entry = next(entry for entry in journal.entries if entry.accepted is not None and entry.accepted.id == name)
    return [token for step in entry.steps.get(0, []) for given in step for token in given.token_ids]


async def read_again(path: Path) -> Journal:
    journal = Journal(str(path), SIZE)
    await journal.close()
    return journal


def only_file(path: Path) -> Path:
    (file,) = path.glob("*.journal")
    return file


async def test_what_was_accepted_and_given_is_read_back(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    await begun(journal, "a", 3)
    await journal.close()
    again = await read_again(tmp_path / "j")
    (entry,) = again.entries
    assert entry.accepted == accepted("a")
    assert entry.seeds == {0: 11}
    first = entry.steps[0][0][0]
    assert (first.token_ids, first.logprobs, first.num_cached_tokens) == ([5], output(0, 5).logprobs, 4)
    assert first.choice == 1
    assert tokens(again, "a") == [5, 6, 7]
    assert (again.salt, again.epoch) == (journal.salt, journal.epoch + 1)


async def test_an_end_stands_for_all_and_what_was_dropped_is_gone(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    first = await begun(journal, "a", 2)
    second = await begun(journal, "b", 2)
    first.ended(ended("a"))
    second.dropped()
    await journal.close()
    (entry,) = (await read_again(tmp_path / "j")).entries
    assert entry.accepted is None
    assert entry.ended is not None
    assert entry.ended.kept == b"kept"


async def test_entries_go_on_in_the_next_run(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    await begun(journal, "a", 2)
    await journal.close()
    journal = opened(tmp_path / "j")
    log = journal.go_on(journal.entries[0])
    log.given(0, [output(2, 7)])
    await journal.close()
    assert tokens(await read_again(tmp_path / "j"), "a") == [5, 6, 7]


async def test_only_the_owner_may_read(tmp_path: Path) -> None:
    journal = opened(tmp_path / "new" / "j")
    await begun(journal, "a", 1)
    await journal.close()
    assert stat.S_IMODE((tmp_path / "new" / "j").stat().st_mode) == 0o700
    for file in (tmp_path / "new" / "j").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


async def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j").mkdir(mode=0o755)
    (tmp_path / "j").chmod(0o755)
    with pytest.raises(UserError, match="chmod 700"):
        Journal(str(tmp_path / "j"), SIZE)


async def test_one_server_a_directory(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    with pytest.raises(UserError, match="another server"):
        Journal(str(tmp_path / "j"), SIZE)
    await journal.close()
    await read_again(tmp_path / "j")


async def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("mine")
    with pytest.raises(UserError, match="--request-journal"):
        Journal(str(tmp_path / "j"), SIZE)


async def test_a_file_cut_anywhere_gives_the_tokens_before_the_cut(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    await begun(journal, "a", 6)
    await journal.close()
    file = only_file(tmp_path / "j")
    whole = file.read_bytes()
    places = [frame.start for frame in frames(whole)]
    for cut in range(0, len(whole), 7):
        file.write_bytes(whole[:cut])
        again = await read_again(tmp_path / "j")
        num_whole = sum(1 for start, end in zip(places, [*places[1:], len(whole)], strict=True) if end <= cut)
        kept = max(0, num_whole - 3)  # behind the file's head, what was accepted, and the seed
        assert [entry.number for entry in again.entries] == ([1] if num_whole >= 2 else [])
        if again.entries:
            assert tokens(again, "a") == [5, 6, 7, 8, 9, 10][:kept]
        for other in (tmp_path / "j").glob("*.journal"):
            if other != file:
                other.unlink()


async def test_damage_anywhere_costs_what_it_hits_and_invents_nothing(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    await begun(journal, "a", 5)
    await begun(journal, "b", 5)
    await journal.close()
    file = only_file(tmp_path / "j")
    whole = file.read_bytes()
    draw = random.Random(5)
    for _ in range(60):
        damaged = bytearray(whole)
        place = draw.randrange(len(damaged))
        length = draw.choice((1, 1, 4, 60))
        damaged[place : place + length] = draw.randbytes(length)
        file.write_bytes(damaged)
        again = await read_again(tmp_path / "j")
        for entry in again.entries:
            assert entry.accepted is not None
            found = tokens(again, entry.accepted.id)
            assert found == [5, 6, 7, 8, 9][: len(found)]
            assert entry.seeds in ({}, {0: 11})
        names = [entry.accepted.id for entry in again.entries if entry.accepted is not None]
        assert "b" in names if place + length < len(whole) // 2 else "a" in names
        for other in (tmp_path / "j").glob("*.journal"):
            if other != file:
                other.unlink()


async def test_a_missing_record_ends_the_tokens_that_count(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    await begun(journal, "a", 5)
    await journal.close()
    file = only_file(tmp_path / "j")
    whole = file.read_bytes()
    third = next(frame for frame in frames(whole) if frame.number == 4)
    file.write_bytes(whole[: third.start] + whole[third.start + len(third.data) :])
    assert tokens(await read_again(tmp_path / "j"), "a") == [5, 6]


def test_frames_are_found_behind_anything() -> None:
    frame = framed(3, 4, Kind.GIVEN, b"payload")
    noise = random.Random(1).randbytes(500)
    found = list(frames(noise + frame.data + noise + frame.data[:-1] + frame.data))
    assert [(each.entry, each.number, bytes(each.payload)) for each in found] == [(3, 4, b"payload")] * 2


def size_of(directory: Path) -> int:
    """Bytes of the files, of which some may be going just now."""
    total = 0
    for file in directory.glob("*.journal"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


async def test_the_files_stay_small_and_lose_nothing(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    steady = await begun(journal, "steady", 4)
    body = os.urandom(20_000)
    for number in range(120):
        log = await begun(journal, f"r{number}", 3, body)
        steady.given(0, [output(4 + number, 9 + number)])
        if number % 2:
            log.dropped()
        else:
            log.ended(ended(f"r{number}", os.urandom(20_000)))
        if number % 20 == 0:
            await journal.synced()
    async with asyncio.timeout(5):
        while size_of(tmp_path / "j") > 1.5 * SIZE:
            await asyncio.sleep(0.02)  # old files are given up meanwhile
    await journal.close()
    again = await read_again(tmp_path / "j")
    assert len(tokens(again, "steady")) == 124
    kept = {entry.ended.id for entry in again.entries if entry.ended is not None}
    assert "r118" in kept
    assert 20 < len(kept) < 30
    assert not [name for name in kept if int(name[1:]) % 2]


async def test_a_journal_full_of_what_runs_takes_no_more(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    log = await begun(journal, "a", 1, os.urandom(SIZE // 2))
    with pytest.raises(RequestError) as caught:
        accept(journal, "b")
    assert (caught.value.status, caught.value.code) == (503, "journal_unavailable")
    assert caught.value.retry_after
    log.given(0, [output(1, 6)])
    log.dropped()
    accept(journal, "b")
    await journal.close()


async def test_a_disk_that_hangs_keeps_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "STALL_S", 0.2)
    monkeypatch.setattr(writing, "RETRY_S", 0.05)
    journal = opened(tmp_path / "j")
    running = await begun(journal, "a", 1)
    write = segment_files._write
    awake = threading.Event()

    def hang(descriptor: int, data: bytes) -> None:
        awake.wait(10)
        write(descriptor, data)

    monkeypatch.setattr(segment_files, "_write", hang)
    running.given(0, [output(1, 6)])
    async with asyncio.timeout(2):
        await journal.written()
        running.given(0, [output(2, 7)])
        await journal.written()
    with pytest.raises(RequestError, match="not answered"):
        journal.check()
    awake.set()
    async with asyncio.timeout(5):
        while journal.problem is not None:
            await asyncio.sleep(0.02)
    await (await begun(journal, "b", 1)).accepted()
    await journal.close()
    again = await read_again(tmp_path / "j")
    assert tokens(again, "a") == [5, 6]
    assert tokens(again, "b") == [5]


def test_a_file_whose_sync_failed_is_written_and_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = Segments(JournalDirectory(str(tmp_path / "j")), FileHead(b"salt", 1), SIZE)
    segments.append(b"a record")
    path = only_file(tmp_path / "j")
    contents = path.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output"):
        patch.setattr(segment_files.os, "fsync", fail)
        segments.sync()
    written = path.stat().st_mtime_ns
    synced: list[int] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(segment_files.os, "fsync", noted)
    segments.begin_new_file()
    assert path.stat().st_ino in synced
    assert path.stat().st_mtime_ns > written
    assert path.read_bytes() == contents
    segments.close()


async def test_a_full_disk_is_told_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(tmp_path / "j")
    running = await begun(journal, "a", 2)
    write = segment_files._write
    full = True

    def refuse(descriptor: int, data: bytes) -> None:
        if full:
            write(descriptor, data[:10])  # as much as there was room for
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor, data)

    monkeypatch.setattr(segment_files, "_write", refuse)
    refused = accept(journal, "b")
    with pytest.raises(RequestError, match="No space left"):
        await refused.accepted()
    assert "No space left" in (journal.problem or "")
    with pytest.raises(RequestError, match="No space left"):
        journal.check()
    running.given(0, [output(2, 7)])
    await journal.written()  # which nobody has to wait for
    full = False
    async with asyncio.timeout(5):
        while journal.problem is not None:
            await asyncio.sleep(0.05)
    await (await begun(journal, "c", 2)).accepted()
    running.given(0, [output(3, 8)])
    await journal.close()
    monkeypatch.undo()
    again = await read_again(tmp_path / "j")
    names = [entry.accepted.id for entry in again.entries if entry.accepted is not None]
    assert names == ["a", "c"]
    assert tokens(again, "a") == [5, 6]  # it can go on from there; what is behind the gap does not count
