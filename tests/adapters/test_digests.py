"""The digest of an adapter is taken again as soon as its files may have changed, and not before."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core_adapters import digests
from core_adapters.digests import FileDigests


class Reader:
    """Reads a file, and counts how often its digest was computed. meanwhile: happens after the reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digests = FileDigests()
        self.computed = 0
        self.text = ""

    def digest(self, meanwhile: Callable[[], None] = lambda: None) -> str:
        def read() -> None:
            self.text = self.path.read_text()
            meanwhile()

        def compute() -> str:
            self.computed += 1
            return f"digest of {self.text}"

        return self.digests.of([self.path], read, compute)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time has passed since the files were written."""
    now = time.time_ns
    monkeypatch.setattr(digests.time, "time_ns", lambda: now() + 60 * digests.SETTLED_NS)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    (tmp_path / "file").write_text("one")
    return Reader(tmp_path / "file")


@pytest.mark.usefixtures("later")
def test_files_that_stay_are_not_digested_again(reader: Reader) -> None:
    assert [reader.digest() for _ in range(3)] == ["digest of one"] * 3
    assert reader.computed == 1


def test_new_files_are_digested_each_time(reader: Reader) -> None:
    """A change within one tick of the file system's clock would not show."""
    assert [reader.digest() for _ in range(3)] == ["digest of one"] * 3
    assert reader.computed == 3


@pytest.mark.usefixtures("later")
def test_a_change_of_equal_size_and_time_is_seen(reader: Reader) -> None:
    reader.digest()
    status = reader.path.stat()
    reader.path.write_text("two")
    os.utime(reader.path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the other time cannot be set
    assert reader.digest() == "digest of two"


@pytest.mark.usefixtures("later")
def test_a_file_that_is_replaced_while_it_is_read_is_digested_as_it_was_read(reader: Reader) -> None:
    reader.digest()
    other = reader.path.with_name("other")
    other.write_text("two")
    assert reader.digest(meanwhile=lambda: other.rename(reader.path)) == "digest of one"
    assert reader.computed == 2
    assert reader.digest() == "digest of two"
