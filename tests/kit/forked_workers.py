"""Answers to the kit's tasks from processes that are forked instead of started.

Owns: two parents, each started once: one that has imported what every helper imports, and one that has imported torch as well.
Never does: check anything. Called by: the conformance of our own plugins, whose hundred helpers would each import the same
libraries (45 seconds of processor time in all). A child knows nothing of the tasks before it, as a fresh process does.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from core.processes import python_command
from core_kit import worker
from core_kit.worker import Answer, Task


class ForkedWorkers:
    """The parent of children that import (load=False), or load (load=True)."""

    def __init__(self, *, load: bool) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            python_command("tests.kit.forked_workers", "load" if load else "import"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def ask(self, task: Task) -> Answer:
        """The outcome of a task, or how its child ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(task) + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Answer)

    def close(self) -> None:
        """End the parent."""
        self._process.communicate(timeout=60)


def forked(task: Task) -> bytes:
    """The encoded answer of a child."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(2, 1)  # a plugin that prints must not spoil the answer
        os.write(theirs, msgspec.json.encode(worker._work(task)))
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        raw = pipe.read()
    _, status = os.waitpid(child, 0)
    return raw or msgspec.json.encode(Answer(error=f"a forked process ended with status {status}"))


def main(argv: Sequence[str]) -> int:
    """Answer the tasks on standard input, a line each."""
    if argv[0] == "load":
        import torch  # noqa: F401

        import core_kit.checkpoints  # noqa: F401
    for line in sys.stdin.buffer:
        answer = forked(msgspec.json.decode(line, type=Task))
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
