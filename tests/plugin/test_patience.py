"""A process is waited for while it gets no processor, and no longer."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from core.plugin import patience
from core.plugin.forks import Fork
from core.plugin.rehearsal import answers

ANSWER_S = 0.6
LIMIT_S = 0.2


def child_that(script: str) -> tuple[Fork, subprocess.Popen[bytes]]:
    (answer, answer_out), (words, words_out) = os.pipe(), os.pipe()
    process = subprocess.Popen(["sh", "-c", script], stdout=answer_out, stderr=words_out, start_new_session=True)
    os.close(answer_out)
    os.close(words_out)
    return Fork(process.pid, answer, words, {answer: b"", words: b""}), process


def asked(script: str) -> str:
    """Why there is no answer; empty when there is one."""
    child, process = child_that(script)
    (answer,) = answers([child], LIMIT_S)
    process.returncode = 0  # it was waited for
    return answer.unavailable


def starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on all processes always want a processor and get none."""
    begin = time.monotonic()

    def waited(pid: int) -> float:
        return time.monotonic() - begin

    monkeypatch.setattr(patience, "waited_for_processor", waited)


def test_a_process_without_a_processor_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = f"sleep {ANSWER_S}; printf '{{}}'"
    assert asked(slow) == f"no answer within {LIMIT_S:g} s"
    starve(monkeypatch)
    assert asked(slow) == ""


def test_no_process_is_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    starve(monkeypatch)
    begin = time.monotonic()
    assert asked("sleep 60") == f"no answer within {LIMIT_S:g} s"
    assert time.monotonic() - begin > patience.MOST * LIMIT_S / 2


def test_what_the_system_tells_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert patience.waited_for_processor(os.getpid()) >= 0.0
    monkeypatch.setattr(patience, "PROC", tmp_path)
    assert patience.waited_for_processor(7) == 0.0, "no such process, or another system"
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "schedstat").write_text("1000 2500000000 3\n")
    assert patience.waited_for_processor(7) == 2.5
