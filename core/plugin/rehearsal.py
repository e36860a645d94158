"""A trial run of plugins that the user did not choose, in another process, so that a hang or crash there does no harm.

Owns: the helper process (`core.plugin.rehearsal_process`), its time limit, and the messages to and from it. Never
does: choose a plugin, import torch or a plugin. Called by: the registry.

Platforms are probed for their devices there. For any other plugin, the process imports the manifest and calls the hooks that a
stage is about to call. A plugin that passes is then imported and called in this process, like a plugin that the user named.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from core.api.checkpoint_facts import CheckpointFacts, FileFacts
from core.api.config import ResolvedPlugin
from core.api.specs import AttentionQuery, KernelQuery, StateQuery
from core.plugin import patience
from core.plugin.hookspecs import Device
from core.processes import python_command

TIME_LIMIT = 10.0
"""Seconds in which a plugin must have answered every call, not counting the time in which it waited for a processor."""
GRACE = 10.0
"""Seconds beyond `TIME_LIMIT` in which the helper itself must have started and ended, on a machine that is not busy."""

_TYPES = (CheckpointFacts, FileFacts, AttentionQuery, StateQuery, KernelQuery)
ARGUMENT_TYPES = {kind.__name__: kind for kind in _TYPES}
"""The types of the arguments of hooks that are called in the helper process, by name."""


class Argument(msgspec.Struct, frozen=True):
    """One argument of a hook, in the form in which it is sent to the helper process.

    type:  a key of ARGUMENT_TYPES.
    value: the argument's Struct as plain values.
    """

    type: str
    value: Any


class Call(msgspec.Struct, frozen=True):
    """A hook to call, with its arguments by name."""

    hook: str
    arguments: dict[str, Argument] = {}

    @classmethod
    def of(cls, hook: str, **arguments: msgspec.Struct) -> Call:
        """Make a call of `hook` with these arguments, whose types must be in ARGUMENT_TYPES."""
        packed: dict[str, Argument] = {}
        for name, value in arguments.items():
            kind = type(value).__name__
            packed[name] = Argument(kind, msgspec.to_builtins(value))
        return cls(hook, packed)

    def unpacked(self) -> dict[str, Any]:
        """Return the arguments as the hook takes them, converted back to their Structs."""
        unpacked: dict[str, Any] = {}
        for name, argument in self.arguments.items():
            kind = ARGUMENT_TYPES[argument.type]
            unpacked[name] = msgspec.convert(argument.value, kind)
        return unpacked


PROBE = Call("core_probe")


class Part(msgspec.Struct, frozen=True):
    """One plugin, and the hooks to call once its manifest is imported."""

    row: ResolvedPlugin
    calls: tuple[Call, ...] = ()


class Task(msgspec.Struct, frozen=True):
    """The message on the helper's standard input.

    parts:      the plugins to try.
    time_limit: seconds for each plugin.
    path:       `sys.path` of this process, which the helper adopts.
    """

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


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A running helper with its task. process: None when there is no plugin to try."""

    task: Task
    process: subprocess.Popen[bytes] | None


def start(parts: Sequence[Part], time_limit: float = TIME_LIMIT) -> Rehearsal:
    """Start one helper for all of `parts`, each of which gets `time_limit` seconds; `collect` reads its answers."""
    task = Task(tuple(parts), time_limit, tuple(sys.path))
    if not parts:
        return Rehearsal(task, None)
    command = python_command("core.plugin.rehearsal_process")
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    assert process.stdin is not None
    # A helper that died at its start has closed the pipe; `collect` reports how it ended.
    with contextlib.suppress(BrokenPipeError), process.stdin as words:
        words.write(msgspec.json.encode(task))
    process.stdin = None  # `communicate` would flush the closed stream.
    return Rehearsal(task, process)


def collect(rehearsal: Rehearsal) -> list[Answer]:
    """Wait for a started helper and return one answer for each part; plugins without an answer in time were ended."""
    process = rehearsal.process
    parts = rehearsal.task.parts
    if process is None:
        return []
    try:
        # The helper itself limits each plugin, by `Patience`, for up to MOST times the limit. This bounds only the helper.
        out, err = process.communicate(timeout=patience.MOST * (rehearsal.task.time_limit + GRACE))
        return list(msgspec.json.decode(out, type=tuple[Answer, ...]))
    except subprocess.TimeoutExpired:
        sentence = f"no answer within {rehearsal.task.time_limit:g} s"
    except msgspec.MsgspecError:
        sentence = f"the helper {ending(process.returncode, err)}"
    finally:
        _end(process)
    return [Answer(unavailable=sentence) for _ in parts]


def ending(returncode: int, words: bytes) -> str:
    """Describe how a process ended, with the last line of its output."""
    how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
    lines = words.decode(errors="replace").strip().splitlines()
    said = lines[-1] if lines else "without a word"
    return f"process ended with {how}: {said}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a helper that still runs. SIGTERM comes first, since the helper then also ends the plugins' processes."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
            return
        process.kill()
        process.communicate()
