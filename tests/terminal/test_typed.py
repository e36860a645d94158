"""What the tab key makes of a line in a chat."""

from pathlib import Path

import pytest

from core_commands.terminal.slash import COMMANDS
from core_commands.terminal.typed import completions

NAMES = [f"/{name}" for name in COMMANDS]


def test_commands_at_the_beginning_of_a_line() -> None:
    assert completions("/s", "/s", NAMES) == ["/system", "/save"]
    assert completions("/", "/", NAMES) == NAMES
    assert completions("/nothing", "/nothing", NAMES) == []
    assert completions("what about /s", "/s", NAMES) == [], "a message is not completed"


def test_paths_behind_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("notes.txt", "note[1].txt"):
        (tmp_path / name).touch()
    (tmp_path / "nothing").mkdir()
    monkeypatch.chdir(tmp_path)
    assert completions("/file no", "no", NAMES) == ["note[1].txt", "notes.txt", "nothing/"]
    assert completions("/file note[", "note[", NAMES) == ["note[1].txt"]
    assert completions("/file none", "none", NAMES) == []
