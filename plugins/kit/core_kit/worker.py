"""A helper process that imports the plugin in a fresh interpreter: the cost of its manifest, and whether a worker can
load it.

Owns: the helper process and its answer. Never does: check anything itself. Called by: the general checks; as `python -m
core_kit.worker`, by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec

from core.api.config import ResolvedPlugin
from core.api.errors import CoreError
from core.plugin.manifest import load_manifest
from core.processes import end_with_parent, ending, lifeline, python_command
from core_kit.case import Skipped, Subject

TIME_LIMIT = 120.0
HEAVY = ("torch", "transformers", "numpy", "triton", "jax")


class Task(msgspec.Struct, frozen=True):
    """The helper's task: import the manifest of `row`, and load the plugin if `load` is set."""

    row: ResolvedPlugin
    load: bool
    model: str | None = None
    arguments: dict[str, object] = {}
    plugins: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """The outcome of a task.

    heavy: large libraries that the manifest imported.
    seconds: CPU time of its import.
    loaded: class of the loaded object.
    error: why import or loading failed; empty on success.
    skipped: why it was not tried.
    """

    heavy: tuple[str, ...] = ()
    seconds: float = 0.0
    loaded: str = ""
    error: str = ""
    skipped: str = ""


def ask(task: Task) -> Answer:
    """Run the helper; any outcome of it becomes an Answer."""
    command = python_command("core_kit.worker", msgspec.json.encode(task).decode())
    search_path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": search_path}
    try:
        with lifeline() as line_of_life:
            done = subprocess.run(
                command, capture_output=True, timeout=TIME_LIMIT, env=environment, stdin=line_of_life, check=False
            )
    except subprocess.TimeoutExpired:
        return Answer(error=f"a fresh process was not ready within {TIME_LIMIT:g} s")
    try:
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Answer)
    except (msgspec.MsgspecError, IndexError):
        return Answer(error=f"a fresh {ending(done.returncode, done.stderr)}")


def _work(task: Task) -> Answer:
    before = set(sys.modules)
    begin = time.process_time()
    try:
        load_manifest(task.row)
    except CoreError as error:
        return Answer(error=str(error))
    seconds = time.process_time() - begin
    heavy = tuple(name for name in HEAVY if name in sys.modules and name not in before)
    if not task.load:
        return Answer(heavy, seconds)
    from core.plugin.table import PluginTable

    subject = Subject(task.row.kind, task.row.name, task.model, None, task.arguments, task.plugins)
    try:
        context = subject.context()
        loaded = PluginTable([task.row]).load(task.row.kind, task.row.name, context)
    except Skipped as reason:
        return Answer(heavy, seconds, skipped=str(reason))
    except CoreError as error:
        return Answer(heavy, seconds, error=str(error))
    return Answer(heavy, seconds, type(loaded).__name__)


def main(argv: Sequence[str]) -> int:
    """Run the helper process: the answer is the last line of the real standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    end_with_parent(0)
    task = msgspec.json.decode(argv[0], type=Task)
    answer = _work(task)
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
