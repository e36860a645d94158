"""Plugins that nobody chose are tried in a process of their own first, so that one that hangs or crashes harms nobody.

Owns: the helper process (`core.plugin.rehearsal_process`), its time limit, what it is asked and what it answers. Never
does: choose a plugin, import torch or a plugin. Called by: the registry.

Platforms are asked for their devices there. Of any other plugin the manifest is imported and the hooks called that a
stage is about to call; whoever survives that is then imported and called plainly, like a plugin that the user named.
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
"""Seconds in which a plugin must have answered everything, those left out in which it got no processor."""
GRACE = 10.0
"""Seconds beyond that in which the helper itself must have started and ended, on a machine that is not busy."""

_TYPES = (CheckpointFacts, FileFacts, AttentionQuery, StateQuery, KernelQuery)
ARGUMENT_TYPES = {kind.__name__: kind for kind in _TYPES}
"""The types of all arguments of hooks that are called in the helper process, by name."""


class Argument(msgspec.Struct, frozen=True):
    """One argument of a hook on its way.

    type:  a key of ARGUMENT_TYPES.
    value: the Struct as plain values.
    """

    type: str
    value: Any


class Call(msgspec.Struct, frozen=True):
    """A hook to call, with its arguments by name."""

    hook: str
    arguments: dict[str, Argument] = {}

    @classmethod
    def of(cls, hook: str, **arguments: msgspec.Struct) -> Call:
        """A call with these arguments."""
        packed: dict[str, Argument] = {}
        for name, value in arguments.items():
            kind = type(value).__name__
            packed[name] = Argument(kind, msgspec.to_builtins(value))
        return cls(hook, packed)

    def unpacked(self) -> dict[str, Any]:
        """The arguments as the hook wants them."""
        unpacked: dict[str, Any] = {}
        for name, argument in self.arguments.items():
            kind = ARGUMENT_TYPES[argument.type]
            unpacked[name] = msgspec.convert(argument.value, kind)
        return unpacked


PROBE = Call("core_probe")


class Part(msgspec.Struct, frozen=True):
    """One plugin, and what it is asked after its manifest was imported."""

    row: ResolvedPlugin
    calls: tuple[Call, ...] = ()


class Task(msgspec.Struct, frozen=True):
    """The message on the helper's standard input.

    parts:      the plugins to ask.
    time_limit: seconds that each plugin gets.
    path:       where modules are found here, and hence there.
    """

    parts: tuple[Part, ...]
    time_limit: float
    path: tuple[str, ...]


class Answer(msgspec.Struct, frozen=True):
    """How a plugin did.

    devices:     of a platform that was probed.
    unavailable: why there is no answer, or no device, although the manifest is sound; empty otherwise.
    broken:      what the manifest or a hook did wrong, without the plugin's name; empty when all went well.
    details:     the traceback behind `broken`.
    """

    devices: tuple[Device, ...] = ()
    unavailable: str = ""
    broken: str = ""
    details: str = ""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A helper at work. process: None when there is nobody to ask."""

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
    with contextlib.suppress(BrokenPipeError), process.stdin as words:
        words.write(msgspec.json.encode(task))
    process.stdin = None
    return Rehearsal(task, process)


def collect(rehearsal: Rehearsal) -> list[Answer]:
    """One answer for each part of a started helper; plugins still silent after the time limit were ended."""
    process = rehearsal.process
    parts = rehearsal.task.parts
    if process is None:
        return []
    try:
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
    """How a process ended, with the last line that it said."""
    how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
    lines = words.decode(errors="replace").strip().splitlines()
    said = lines[-1] if lines else "without a word"
    return f"process ended with {how}: {said}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have a helper that is still there end the plugins that it asks, and itself."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
            return
        process.kill()
        process.communicate()
