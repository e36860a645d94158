"""A helper process for all checks of one plugin, so that a hang or crash becomes a finding and does not end the run.

Owns: the helper process, its time limit, and the findings that it reports one by one. Never does: print.
Called by: `core plugins check`; as `python -m core_kit.runner`, by itself.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

import msgspec

from core.plugin.patience import Patience
from core.processes import end_with_parent, ending, lifeline, python_command
from core_kit.case import FOLDER, Finding
from core_kit.suite import cases
from core_supervision.link.own_directory import OwnDirectory

TIME_LIMIT = 300.0


class Task(msgspec.Struct, frozen=True):
    """The plugin that the helper checks; see `core_kit.case.Subject`.

    name: as the user wrote it, `DIST:name` included.
    """

    kind: str
    name: str
    model: str | None = None
    reference: str | None = None
    arguments: dict[str, object] = {}
    plugins: str | None = None


class Line(msgspec.Struct, frozen=True):
    """One output line of the helper: a check has started or finished."""

    started: str = ""
    finding: Finding | None = None


def findings(task: Task, time_limit: float = TIME_LIMIT) -> Iterator[Finding]:
    """Yield every finding as it arrives. A helper that hangs or dies yields a last, failed one."""
    command = python_command("core_kit.runner", msgspec.json.encode(task).decode())
    running = "the start"
    with (
        lifeline() as line_of_life,
        OwnDirectory(FOLDER) as folder,
        tempfile.TemporaryFile() as words,
    ):
        # The helper may be killed before it can clean up, so its temporary files go where they are removed here.
        search_path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": search_path, "TMPDIR": str(folder)}
        child = subprocess.Popen(command, stdin=line_of_life, stdout=subprocess.PIPE, stderr=words, env=environment)
        try:
            for line in _lines(child, Patience(child.pid, time_limit)):
                if line.finding is not None:
                    yield line.finding
                running = line.started or running
            if child.wait(timeout=10):
                words.seek(0)
                yield _last(task, running, f"the {ending(child.returncode, words.read())}")
        except subprocess.TimeoutExpired:
            yield _last(task, running, f"no answer within {time_limit:g} s")
        finally:
            if child.poll() is None:
                child.kill()
            child.communicate()


def _lines(child: subprocess.Popen[bytes], patience: Patience) -> Iterator[Line]:
    """Yield lines as they arrive. Raises TimeoutExpired."""
    assert child.stdout is not None
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            while not selector.select(patience.left()):
                if not patience.left():
                    raise subprocess.TimeoutExpired(child.args, 0.0)
            data = os.read(child.stdout.fileno(), 1 << 16)
            if not data:
                return
            *whole, pending = (pending + data).split(b"\n")
            for text in whole:
                yield msgspec.json.decode(text, type=Line)


def _last(task: Task, running: str, sentence: str) -> Finding:
    return Finding(f"{task.kind}.{task.name}", running, "failed", sentence)


def main(argv: Sequence[str]) -> int:
    """Run the helper process: findings go to the real standard output, the plugin's own output to standard error."""
    end_with_parent(0)
    task = msgspec.json.decode(argv[0], type=Task)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def tell(line: Line) -> None:
        answers.write(msgspec.json.encode(line) + b"\n")
        answers.flush()

    extras = {"model": task.model, "reference": task.reference, "arguments": task.arguments, "plugins": task.plugins}
    for case in cases(task.kind, task.name, **extras):  # type: ignore[arg-type]
        tell(Line(started=case.title))
        tell(Line(finding=case.finding()))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
