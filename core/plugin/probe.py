"""Platforms are asked for their devices in helper processes, so that a driver that hangs or crashes harms nobody.

Owns: the helper process, its time limit and its answer. Never does: choose a platform, import torch.
Called by: the registry; as `python -m core.plugin.probe`, by itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec

from core.api.config import ResolvedPlugin
from core.api.errors import PluginError
from core.plugin.hookspecs import Device, Probe

TIME_LIMIT = 10.0


class Answer(msgspec.Struct, frozen=True):
    """What the helper prints. broken: the manifest itself failed, with this sentence."""

    devices: tuple[Device, ...] = ()
    unavailable: str = ""
    broken: str = ""


def probe_all(rows: Sequence[ResolvedPlugin], time_limit: float = TIME_LIMIT) -> list[Probe | PluginError]:
    """Ask every platform of `rows` at the same time; one answer each, in order. Takes at most about `time_limit` seconds."""
    return collect(start(rows), time_limit)


def start(rows: Sequence[ResolvedPlugin]) -> list[tuple[ResolvedPlugin, subprocess.Popen[bytes]]]:
    """Start one helper a platform; `collect` reads their answers."""
    started = []
    for row in rows:
        command = [sys.executable, "-P", "-m", "core.plugin.probe", msgspec.json.encode(row).decode()]
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        started.append((row, child))
    return started


def collect(
    started: Sequence[tuple[ResolvedPlugin, subprocess.Popen[bytes]]], time_limit: float = TIME_LIMIT
) -> list[Probe | PluginError]:
    """The answers of started helpers; those still silent after `time_limit` seconds are ended."""
    deadline = time.monotonic() + time_limit
    return [_answer(row, child, deadline, time_limit) for row, child in started]


def _answer(
    row: ResolvedPlugin, child: subprocess.Popen[bytes], deadline: float, time_limit: float
) -> Probe | PluginError:
    try:
        out, err = child.communicate(timeout=max(deadline - time.monotonic(), 0.01))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return Probe(unavailable=f"the probe did not answer within {time_limit:g} s")
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        raise
    try:
        answer = msgspec.json.decode(out, type=Answer)
    except msgspec.MsgspecError:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["without a word"]
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        return Probe(unavailable=f"the probe of '{row.name}' ended with {how}: {last[0]}")
    if answer.broken:
        return PluginError(answer.broken)
    return Probe(devices=answer.devices, unavailable=answer.unavailable)


def _ask(row: ResolvedPlugin) -> Answer:
    """Call `core_probe` here, in the helper."""
    from core.plugin.manifest import load_manifest

    try:
        probe = load_manifest(row).call("core_probe")
    except PluginError as error:
        return Answer(broken=str(error))
    if probe is None:
        return Answer(broken=f"platform plugin '{row.name}' ({row.distribution}): the manifest has no core_probe.")
    unavailable = probe.unavailable or ("" if probe.devices else "no device was found")
    return Answer(devices=probe.devices, unavailable=unavailable)


def main(argv: Sequence[str]) -> int:
    """Helper process: answer on the real standard output; whatever the plugin prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answer = _ask(msgspec.json.decode(argv[0], type=ResolvedPlugin))
    answers.write(msgspec.json.encode(answer))
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
