"""The process that compiles an engine's kernels while the engine loads its weights.

Owns: the order of its answers. Never does: open a device. Called by: the warm-up, which starts it.

It reads a `Task` as one line of its standard input, and writes an `Answer` a line to its standard output. It ends when its
input is closed.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import sys
from typing import BinaryIO

import msgspec

from core.api.errors import CoreError
from core.processes import end_with_parent
from core_kernels.triton.compiling.ahead import compile_all, launched_parts, target_of
from core_kernels.triton.compiling.messages import Answer, Task, encoded


def main() -> None:
    """Compile what a task names."""
    answers = own_output()
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    sys.path[:] = task.path
    end_with_parent(sys.stdin.fileno(), end_compilers)
    try:
        module, _, name = task.run.partition(":")
        run = functools.partial(getattr(importlib.import_module(module), name), task.config)
        parts = launched_parts(target_of(task.chip), run)
    except CoreError as error:
        say(answers, Answer(skipped=str(error)))
        return
    except Exception as error:  # of a plugin that needs its device, for one; the engine starts without a warm-up
        say(answers, Answer(skipped=f"{type(error).__name__}: {error}"))
        return
    for done, kernel in enumerate(compile_all(parts, task.jobs, launchers=True), start=1):
        say(answers, Answer(kernel=kernel, done=done, count=len(parts)))
    say(answers, Answer(launches=[encoded(part.launch) for part in parts]))


def own_output() -> BinaryIO:
    """Return the standard output for answers alone; whatever else is printed goes to the standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def say(answers: BinaryIO, answer: Answer) -> None:
    """Write an answer."""
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


def end_compilers() -> None:
    """End the processes that compile; this one ends after it."""
    for process in multiprocessing.active_children():
        process.kill()


if __name__ == "__main__":
    main()
