"""The helper process of `core.plugin.probe`: it forks once for each platform, and the fork asks.

Owns: these forks, their time limit and what becomes of them. Never does: import a plugin in its own process, so a fork costs
a millisecond and starts clean. Called by: `core.plugin.probe`, as `python -m core.plugin.probe_helper`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, NoReturn

import msgspec

from core.api.config import ResolvedPlugin
from core.api.errors import PluginError
from core.plugin.manifest import load_manifest
from core.plugin.probe import Answer, Task, ending


@dataclass(slots=True)
class Child:
    """A fork that asks one platform. answer: where its Answer is read. words: what the plugin prints. text: read so far."""

    row: ResolvedPlugin
    pid: int
    answer: int
    words: IO[bytes]
    text: bytes = b""

    def kill(self) -> None:
        """End it with all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def fork(row: ResolvedPlugin) -> Child:
    """A child that asks the platform of `row`."""
    answer, out = os.pipe()
    words = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the child)
    pid = os.fork()
    if pid == 0:
        _be_the_child(row, out, words)
    os.close(out)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)  # here as well as there: whoever comes first
    return Child(row, pid, answer, words)


def answers(children: Sequence[Child], time_limit: float) -> list[Answer]:
    """What each child answers within `time_limit` seconds. None is left."""
    end = time.monotonic() + time_limit
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.answer, selectors.EVENT_READ, child)
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                data = os.read(key.fd, 1 << 16)
                key.data.text += data
                if not data:
                    selector.unregister(key.fd)
        late = [key.data for key in selector.get_map().values()]
    for child in late:
        child.kill()
    return [_answer(child, f"the probe did not answer within {time_limit:g} s" * (child in late)) for child in children]


def _answer(child: Child, unavailable: str) -> Answer:
    returncode = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
    if unavailable:
        return Answer(unavailable=unavailable)
    try:
        return msgspec.json.decode(child.text, type=Answer)
    except msgspec.MsgspecError:
        child.words.seek(0)
        return Answer(unavailable=f"the probe of '{child.row.name}': its {ending(returncode, child.words.read())}")


def _be_the_child(row: ResolvedPlugin, out: int, words: IO[bytes]) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(words.fileno(), stream)
        with os.fdopen(out, "wb") as answer:
            answer.write(msgspec.json.encode(_ask(row)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _ask(row: ResolvedPlugin) -> Answer:
    """Call `core_probe` in this process."""
    try:
        probe = load_manifest(row).call("core_probe")
    except PluginError as error:
        return Answer(broken=str(error))
    if probe is None:
        return Answer(broken=f"platform plugin '{row.name}' ({row.distribution}): the manifest has no core_probe.")
    unavailable = probe.unavailable or ("" if probe.devices else "no device was found")
    return Answer(devices=probe.devices, unavailable=unavailable)


def main() -> int:
    """Ask all platforms of the task on standard input; their answers go to standard output, in order."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    children: list[Child] = []
    try:
        for row in task.rows:
            children.append(fork(row))
        found = answers(children, task.time_limit)
    except BaseException:
        for child in children:
            child.kill()
        raise
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
