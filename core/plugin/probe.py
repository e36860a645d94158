"""Platforms are asked for their devices in processes of their own, so that a driver that hangs or crashes harms nobody.

Owns: the helper process that asks them (`core.plugin.probe_helper`), its time limit and its answers. Never does: choose a
platform, import torch or a plugin. Called by: the registry.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from core.api.config import ResolvedPlugin
from core.api.errors import PluginError
from core.plugin.hookspecs import Device, Probe
from core.processes import python_command

TIME_LIMIT = 10.0
"""Seconds in which a platform must answer."""
GRACE = 10.0
"""Seconds beyond that in which the helper itself must have started and ended."""


class Task(msgspec.Struct, frozen=True):
    """What the helper reads from its standard input."""

    rows: tuple[ResolvedPlugin, ...]
    time_limit: float


class Answer(msgspec.Struct, frozen=True):
    """What one platform said. broken: the manifest itself failed, with this sentence."""

    devices: tuple[Device, ...] = ()
    unavailable: str = ""
    broken: str = ""

    def outcome(self) -> Probe | PluginError:
        """For the registry."""
        return PluginError(self.broken) if self.broken else Probe(self.devices, self.unavailable)


@dataclass(frozen=True, slots=True)
class Probing:
    """A helper at work. process: None when there is nobody to ask."""

    task: Task
    process: subprocess.Popen[bytes] | None


def probe_all(rows: Sequence[ResolvedPlugin], time_limit: float = TIME_LIMIT) -> list[Probe | PluginError]:
    """Ask every platform of `rows` at the same time; one answer each, in order. Takes at most about `time_limit` seconds."""
    return collect(start(rows, time_limit))


def start(rows: Sequence[ResolvedPlugin], time_limit: float = TIME_LIMIT) -> Probing:
    """Start the helper for all of `rows`; `collect` reads its answers."""
    task = Task(tuple(rows), time_limit)
    if not rows:
        return Probing(task, None)
    command = python_command("core.plugin.probe_helper")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as words:
        words.write(msgspec.json.encode(task))
    process.stdin = None
    return Probing(task, process)


def collect(probing: Probing) -> list[Probe | PluginError]:
    """One answer for each row of a started helper; those still silent after the time limit were ended."""
    process, rows = probing.process, probing.task.rows
    if process is None:
        return []
    try:
        out, err = process.communicate(timeout=probing.task.time_limit + GRACE)
        return [answer.outcome() for answer in msgspec.json.decode(out, type=tuple[Answer, ...])]
    except subprocess.TimeoutExpired:
        sentence = f"the probes did not answer within {probing.task.time_limit:g} s"
    except msgspec.MsgspecError:
        sentence = f"the probes' {ending(process.returncode, err)}"
    finally:
        _end(process)
    return [Probe(unavailable=sentence) for _ in rows]


def ending(returncode: int, words: bytes) -> str:
    """How a process ended, with the last line that it said."""
    how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
    said = words.decode(errors="replace").strip().splitlines()[-1:] or ["without a word"]
    return f"process ended with {how}: {said[0]}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have a helper that is still there end those that it asks, and itself."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
            return
        process.kill()
        process.communicate()
