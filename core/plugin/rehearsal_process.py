"""The helper process of `core.plugin.rehearsal`: it forks once for each plugin, and the fork calls the plugin's hooks.

Owns: these forks, their time limit and their end. Never does: import a plugin in its own process, so that a fork costs a
millisecond and starts clean. Called by: `core.plugin.rehearsal`, which runs it as a module.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from core.api.errors import UserError
from core.plugin.hookspecs import Probe
from core.plugin.manifest import ManifestError, load_manifest
from core.plugin.patience import Patience
from core.plugin.rehearsal import Answer, Part, Task, ending

MOST_BYTES = 1 << 20
"""Bytes kept of a plugin's answer and of its output; of longer ones, the end is kept."""


@dataclass(slots=True, eq=False)
class Child:
    """A forked process that tries one plugin.

    answer: descriptor from which its Answer is read.
    words:  descriptor from which its printed output is read.
    held:   bytes read so far from each of these descriptors.
    """

    pid: int
    answer: int
    words: int
    held: dict[int, bytes]

    def read(self, stream: int) -> bool:
        """Read the available bytes of a stream; False at its end."""
        data = os.read(stream, 1 << 16)
        self.held[stream] = (self.held[stream] + data)[-MOST_BYTES:]
        return bool(data)

    def kill(self) -> None:
        """Kill the process with its whole process group, so that programs started by the plugin end too."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def fork(part: Part) -> Child:
    """Start a child process that tries one plugin."""
    (answer, answer_out), (words, words_out) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_the_child(part, answer_out, words_out)
    os.close(answer_out)
    os.close(words_out)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)  # Also done in the child: either may run first, and `kill` needs the group.
    return Child(pid, answer, words, {answer: b"", words: b""})


def answers(children: Sequence[Child], time_limit: float) -> list[Answer]:
    """Return the answers of all children within `time_limit` seconds, as `Patience` counts them. All children have ended."""
    patience = {child: Patience(child.pid, time_limit) for child in children}
    late = set(children)
    with selectors.DefaultSelector() as selector:
        for child in children:
            for stream in child.held:
                selector.register(stream, selectors.EVENT_READ, child)
        while late and (left := max(patience[child].left() for child in late)) > 0:
            for key, _ in selector.select(left):
                child = key.data
                if child.read(key.fd):
                    continue
                selector.unregister(key.fd)
                # Only the end of `answer` counts: a process that the plugin started may keep the output open.
                if key.fd == child.answer:
                    late.remove(child)
    for child in late:
        child.kill()
    silence = f"no answer within {time_limit:g} s"
    return [_answer(child, silence if child in late else "") for child in children]


def _answer(child: Child, unavailable: str) -> Answer:
    returncode = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
    if unavailable:
        return Answer(unavailable=unavailable)
    try:
        return msgspec.json.decode(child.held[child.answer], type=Answer)
    except msgspec.MsgspecError:
        # The rest of the output, as far as it is there: a process that the plugin started may never close the pipe.
        os.set_blocking(child.words, False)
        with contextlib.suppress(BlockingIOError):
            while child.read(child.words):
                pass
        return Answer(unavailable=f"its {ending(returncode, child.held[child.words])}")


def _be_the_child(part: Part, out: int, words: int) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Not the helper's handler, which would raise SystemExit here.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(words, stream)
        with os.fdopen(out, "wb") as answer:
            answer.write(msgspec.json.encode(_ask(part)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # The fork must not return into the helper's code, nor run its exit handlers.


def _ask(part: Part) -> Answer:
    """Import the manifest and call its hooks in this process, the fork."""
    answer = Answer()
    try:
        manifest = load_manifest(part.row)
        for call in part.calls:
            if call.hook == "core_probe":
                answer = _devices(manifest.call(call.hook))
            else:
                with contextlib.suppress(UserError):  # For the user: the stage calls the hook again and reports it.
                    manifest.call(call.hook, **call.unpacked())
    except ManifestError as error:
        return Answer(broken=error.what, details=error.details)
    return answer


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
    children: list[Child] = []
    try:
        for part in task.parts:
            children.append(fork(part))
        found = answers(children, task.time_limit)
    except BaseException:
        for child in children:
            child.kill()
        raise
    sys.stdout.buffer.write(msgspec.json.encode(found))
    sys.stdout.flush()
    os._exit(0)  # Skips the interpreter's shutdown: there is nothing to clean up, and the parent waits.


if __name__ == "__main__":
    main()
