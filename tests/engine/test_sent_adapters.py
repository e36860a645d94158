"""The store of adapters that were sent: what it keeps, what it frees, and what a client cannot do to it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import torch

from core import SharedTensors
from core.api.adapters import AdapterSource
from core.api.errors import CheckpointError, UserError
from core_adapters.files import sent_tensors
from core_adapters.sent import SentAdapter, SentPlace
from core_adapters.serving.sent_adapters import START, SentAdapters
from core_supervision.link.anonymous_file import anonymous_file
from core_supervision.link.sparse_file import write_at

TENSORS = {
    "a": torch.arange(5, dtype=torch.float32),
    "b": torch.ones(3, 1000, dtype=torch.bfloat16),
    "c": torch.ones(0, 4),
}


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = anonymous_file("test-sent", 0)
    yield descriptor
    os.close(descriptor)


def described(shared: SharedTensors, **changes: Any) -> SentAdapter:
    return msgspec.structs.replace(SentAdapter("{}", shared.name, shared.tensors), **changes)


def received(store: SentAdapters) -> str:
    with SharedTensors(TENSORS) as shared:
        path = store.receive(described(shared))
    store.arrived(path)
    return path


def memory_of(file: int) -> int:
    return os.fstat(file).st_blocks * 512


def read(store: SentAdapters, path: str) -> dict[str, torch.Tensor]:
    place = SentPlace.of(store.reachable(AdapterSource("x", path)).path)
    assert place is not None
    header, start = place.header()
    assert header.configuration == "{}"
    return sent_tensors(place, header.tensors, start)


def test_the_next_engine_has_what_was_recorded_and_frees_the_rest(file: int) -> None:
    before = SentAdapters(file, [])
    first, second, third = (received(before) for _ in range(3))
    size = memory_of(file)
    following = SentAdapters(file, [first, third, "/a/file"])
    assert memory_of(file) == size * 2 // 3
    for path in (first, third):
        found = read(following, path)
        assert found.keys() == TENSORS.keys() and all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)
    newer = received(following)
    assert SentPlace.of(newer) not in (SentPlace.of(second), None) and read(following, newer)
    following.keep_only({third})
    assert memory_of(file) == size // 3 and read(following, third)
    assert following.reachable(AdapterSource("x", "/a/file")).path == "/a/file"


def test_what_arrives_is_not_freed_before_it_is_recorded(file: int) -> None:
    store = SentAdapters(file, [])
    with SharedTensors(TENSORS) as shared:
        path = store.receive(described(shared))
    store.keep_only(set())
    assert read(store, path)
    store.arrived(path)
    store.keep_only(set())
    assert store.is_empty and not memory_of(file)


def test_memory_that_is_cut_meanwhile_is_a_sentence(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SentAdapters(file, [])
    with SharedTensors(TENSORS) as shared:

        def cutting(*given: Any) -> None:
            os.truncate(f"/dev/shm/{shared.name}", 10)
            write_at(*given)

        monkeypatch.setattr("core_adapters.serving.sent_adapters.write_at", cutting)
        with pytest.raises(UserError, match="was cut while tensor 'a' was read"):
            store.receive(described(shared))
    assert store.is_empty and not memory_of(file)


def test_pipes_and_links_are_no_shared_memory(file: int, tmp_path: Path) -> None:
    store = SentAdapters(file, [])
    pipe, link = (Path("/dev/shm", f"core-test-{uuid4().hex}") for _ in range(2))
    os.mkfifo(pipe)
    link.symlink_to("/etc/passwd")
    try:
        for path, words in ((pipe, "is no shared memory"), (link, "cannot be read")):
            with pytest.raises(UserError, match=words):
                store.receive(SentAdapter("{}", path.name, []))
    finally:
        pipe.unlink()
        link.unlink()


def test_bytes_that_are_not_there_are_a_sentence(file: int) -> None:
    store = SentAdapters(file, [])
    path = received(store)
    os.ftruncate(file, START)
    with pytest.raises(CheckpointError, match="damaged in memory"):
        read(store, path)
    for name in ("sent", "sent:1", "/sent:1+2", "sent:1+2@", "sent:-1+2", "sent:1+2/x"):
        assert SentPlace.of(name) is None, name
