"""Files that people name: found, and written whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from core.api.errors import UserError
from core_commands.cli.own_files import own_path, write_whole


def test_names_that_mean_no_file_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_path("a/b") == Path("a/b")
    monkeypatch.setenv("HOME", "/home/ann")
    assert own_path("~/a") == Path("/home/ann/a")
    with pytest.raises(UserError, match="empty"):
        own_path("")
    with pytest.raises(UserError, match="no such home directory"):
        own_path("~nobody-of-this-name/a")


def test_a_file_is_replaced_and_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    for text in (b"one", b"two"):
        write_whole(link, text)
        assert target.read_bytes() == text
    assert link.is_symlink() and sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_what_is_no_file_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"text")
    assert os.read(reader, 10) == b"text" and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)


@pytest.mark.parametrize("name", ["absent/file", "file/below", ".", "x" * 300])
def test_places_where_nothing_can_be_written_are_sentences(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(UserError, match="cannot be written"):
        write_whole(tmp_path / name, b"text")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"
