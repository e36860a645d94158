"""A trial run of plugins that the user did not choose, in other processes, so that a hang or crash there does no harm.

Owns: the helper process, which runs this module and forks once for each plugin, its time limit, the messages to and from
it. Never does: choose a plugin, or import one in the helper itself, so that a fork costs a millisecond and starts clean.
Called by: the registry.

Platforms are probed for their devices there. For any other plugin, the fork imports the manifest and calls the hooks that a
stage is about to call. A plugin that passes is then imported and called in this process, like a plugin that the user named.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import msgspec

from core.api.checkpoint_facts import CheckpointFacts, FileFacts
from core.api.config import ResolvedPlugin
from core.api.errors import UserError
from core.api.specs import AttentionQuery, KernelQuery, StateQuery
from core.plugin import patience
from core.plugin.forks import Fork, wait_for
from core.plugin.hookspecs import Device, Probe
from core.plugin.manifest import ManifestError, load_manifest
from core.processes import ending, python_command

TIME_LIMIT = 10.0
"""Seconds in which a plugin must have answered every call, not counting the time in which it waited for a processor."""
GRACE = 10.0
"""Seconds beyond `TIME_LIMIT` in which the helper itself must have started and ended, on a machine that is not busy."""
TYPES = {kind.__name__: kind for kind in (CheckpointFacts, FileFacts, AttentionQuery, StateQuery, KernelQuery)}
"""The types of the arguments of hooks that are called in forks, by name."""


class Call(msgspec.Struct, frozen=True):
    """A hook to call. arguments: by name, each as the name of its type and its plain values."""

    hook: str
    arguments: dict[str, tuple[str, Any]] = {}

    @classmethod
    def of(cls, hook: str, **arguments: msgspec.Struct) -> Call:
        """Make a call of `hook` with these arguments, whose types must be in TYPES."""
        return cls(hook, {name: (type(it).__name__, msgspec.to_builtins(it)) for name, it in arguments.items()})

    def unpacked(self) -> dict[str, Any]:
        """Return the arguments as the hook takes them, converted back to their Structs."""
        return {name: msgspec.convert(value, TYPES[kind]) for name, (kind, value) in self.arguments.items()}


PROBE = Call("core_probe")


class Part(msgspec.Struct, frozen=True):
    """One plugin, and the hooks to call once its manifest is imported."""

    row: ResolvedPlugin
    calls: tuple[Call, ...] = ()


class Task(msgspec.Struct, frozen=True):
    """The helper's input: the plugins, seconds for each, and `sys.path` of this process, which the helper adopts."""

    parts: tuple[Part, ...]
    time_limit: float
    path: tuple[str, ...]


class Answer(msgspec.Struct, frozen=True):
    """The outcome of one plugin's trial.

    devices:     devices of a platform that was probed.
    unavailable: why there is no answer, or no device, although the manifest is valid; empty otherwise.
    broken:      the mistake of the manifest or of a hook, without the plugin's name; empty when all went well.
    details:     the traceback that belongs to `broken`.
    """

    devices: tuple[Device, ...] = ()
    unavailable: str = ""
    broken: str = ""
    details: str = ""


class Rehearsal(NamedTuple):
    """A running helper with its task. process: None when there is no plugin to try."""

    task: Task
    process: subprocess.Popen[bytes] | None


def start(parts: Sequence[Part], time_limit: float = TIME_LIMIT) -> Rehearsal:
    """Start one helper for all of `parts`, each of which gets `time_limit` seconds; `collect` reads its answers."""
    task = Task(tuple(parts), time_limit, tuple(sys.path))
    if not parts:
        return Rehearsal(task, None)
    command, pipe = python_command(__spec__.name), subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    assert process.stdin is not None
    # A helper that died at its start has closed the pipe; `collect` reports how it ended.
    with contextlib.suppress(BrokenPipeError), process.stdin as words:
        words.write(msgspec.json.encode(task))
    process.stdin = None  # `communicate` would flush the closed stream.
    return Rehearsal(task, process)


def collect(rehearsal: Rehearsal) -> list[Answer]:
    """Wait for a started helper and return one answer for each part; plugins without an answer in time were ended."""
    task, process = rehearsal
    if process is None:
        return []
    try:
        # The helper itself limits each plugin, by `Patience`, for up to MOST times the limit. This bounds only the helper.
        out, err = process.communicate(timeout=patience.MOST * (task.time_limit + GRACE))
        return list(msgspec.json.decode(out, type=tuple[Answer, ...]))
    except subprocess.TimeoutExpired:
        sentence = f"no answer within {task.time_limit:g} s"
    except msgspec.MsgspecError:
        sentence = f"the helper {ending(process.returncode, err)}"
    finally:
        process.terminate()  # Not killed: it ends the plugins' processes first. Does nothing when it has ended.
        process.communicate()
    return [Answer(unavailable=sentence) for _ in task.parts]


def answers(forks: Sequence[Fork], time_limit: float) -> list[Answer]:
    """Return the answers of all forks within `time_limit` seconds, as `Patience` counts them. All forks have ended."""
    late = wait_for(forks, time_limit)
    found: list[Answer] = []
    for fork in forks:
        end = fork.end()
        try:
            answer = msgspec.json.decode(fork.held[fork.answer], type=Answer)
        except msgspec.MsgspecError:
            answer = Answer(unavailable=f"its {end}")
        found.append(Answer(unavailable=f"no answer within {time_limit:g} s") if fork in late else answer)
    return found


def _answer(part: Part) -> bytes:
    """Import the manifest and call its hooks in this process, a fork; return the Answer."""
    try:
        manifest = load_manifest(part.row)
        if PROBE in part.calls:
            return msgspec.json.encode(_devices(manifest.call(PROBE.hook)))
        for call in part.calls:
            with contextlib.suppress(UserError):  # For the user: the stage calls the hook again and reports it.
                manifest.call(call.hook, **call.unpacked())
    except ManifestError as error:
        return msgspec.json.encode(Answer(broken=error.what, details=error.details))
    return msgspec.json.encode(Answer())


def _devices(probe: Probe | None) -> Answer:
    """Convert a platform's probe to an answer: its devices, or why there are none."""
    if probe is None:
        return Answer(broken="the manifest has no core_probe.")
    unavailable = probe.unavailable or ("" if probe.devices else "no device was found")
    return Answer(devices=probe.devices, unavailable=unavailable)


def main() -> NoReturn:
    """Try all plugins of the task on standard input; write their answers to standard output, in order."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    sys.path[:] = task.path
    forks: list[Fork] = []
    try:
        for part in task.parts:
            forks.append(Fork.of(partial(_answer, part)))
        found = answers(forks, task.time_limit)
    except BaseException:
        for fork in forks:
            fork.kill()
        raise
    sys.stdout.buffer.write(msgspec.json.encode(found))
    sys.stdout.flush()
    os._exit(0)  # Skips the interpreter's shutdown: there is nothing to clean up, and the parent waits.


if __name__ == "__main__":
    main()
