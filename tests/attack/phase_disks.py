"""Outputs that take nothing any more, and KV tiers on disks that are full, foreign, read-only or gone; small limits."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.attack.arena import Arena
from tests.attack.make import completion
from tests.attack.phase_connections import leave_in_body
from tests.attack.results import Clock, Phase
from tests.attack.row import Answer, Row
from tests.attack.send import Target, send
from tests.attack.server import HEALTH, Server, metric

OUTPUTS = {
    "standard output and error on a full disk": 'exec "$@" >/dev/full 2>&1',
    "standard output and error closed": 'exec "$@" >&- 2>&-',
    "standard output closed": 'exec "$@" >&-',
    "standard error closed": 'exec "$@" 2>&-',
}
PIPE_BYTES = 16_384
PIPE_REQUESTS, PIPE_ENOUGH = 400, 5
SMALL = {"max_model_len": 256, "kv_cache_memory_bytes": "16M"}
PROMPTS, PROMPT_WORDS = 10, 150
BOUND_GIB, BOUND_BYTES = 0.004, 0.004 * 2**30
PAGE_BYTES = 2 * 2**20
MOST_LINES = 40
TIER_END_S = 20.0


def run(arena: Arena, seconds: float) -> Phase:
    """All kinds, each on a server of its own, as far as there is time."""
    phase = Phase("disks", "Full disks, closed outputs, small limits")
    clock = Clock(seconds)
    steps: list[Callable[[], None]] = [
        *(lambda name=name, shell=shell: output(arena, phase, name, shell) for name, shell in OUTPUTS.items()),
        lambda: stalled_pipe(arena, phase),
        lambda: foreign_files(arena, phase),
        lambda: full_tier(arena, phase),
        lambda: vanishing_tier(arena, phase),
        lambda: read_only_tier(arena, phase),
        lambda: tier_below_a_file(arena, phase),
        lambda: small_stack(arena, phase),
    ]
    for number, step in enumerate(steps, 1):
        if not clock.left:
            phase.notes.append(f"No time was left for the last {len(steps) - number + 1} of {len(steps)} kinds.")
            break
        try:
            step()
        except RuntimeError as error:
            phase.check(f"kind {number} starts", False, str(error)[-300:], "a server")
        arena.say("disks", f"{number} of {len(steps)} kinds")
    return phase


def output(arena: Arena, phase: Phase, name: str, shell: str) -> None:
    """A server whose outputs lead nowhere starts, serves, and ends in order."""
    try:
        with arena.server(shell=shell) as server:
            for number in range(10):
                leave_in_body(server.target, number)  # what it may have something to say about
            arena.check_tokens(phase, server.target, f"with {name}")
            code = server.end()
            phase.check(f"the end with {name}", code == 0, code, 0)
    except RuntimeError as error:
        phase.check(f"a start with {name}", False, str(error)[-200:], "a server")


def stalled_pipe(arena: Arena, phase: Phase) -> None:
    """Whoever reads the log stops reading, then goes away."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    row = Row("refused", "/v1/completions", completion(temperature=-1))
    try:
        with arena.server(log=writer, disable_uvicorn_access_log=None, enable_log_requests=True) as server:
            target = server.target
            os.close(writer)
            bad: list[Answer] = []
            for _ in range(PIPE_REQUESTS):
                answer = send(target, row, 4.0)
                bad += [answer] if answer.status != 400 else []
                if len(bad) == PIPE_ENOUGH:
                    break
            name = f"{PIPE_REQUESTS} requests while nobody reads the log"
            phase.check(name, not bad, f"{len(bad)} without their answer", 0, bad[0].note if bad else "")
            arena.check_tokens(phase, target, "while nobody reads the log")
            os.close(reader)
            reader = -1
            answer = send(target, HEALTH, 5.0)
            phase.check(
                "/health when the log's reader is gone", answer.status == 200, answer.status or answer.note, 200
            )
            arena.check_tokens(phase, target, "when the log's reader is gone")
            code = server.end()
            phase.check("the end when the log's reader is gone", code == 0, code, 0)
    finally:
        if reader >= 0:
            os.close(reader)


def fill(target: Target, first: int = 0) -> list[int]:
    """Prompts enough to push others out of the KV cache; their statuses."""
    bodies = [
        completion(prompt=f"{first + number} " + "tree " * PROMPT_WORDS, max_tokens=2) for number in range(PROMPTS)
    ]
    return [send(target, Row("fill", "/v1/completions", body)).status for body in bodies]


def under_way(arena: Arena, phase: Phase, name: str, path: Path, spoil: Callable[[], None], **options: object) -> None:
    """A server whose tier gets spoilt while it runs: requests go on, and the log stays short."""
    with arena.server(**{**SMALL, "kv_offloading_disk_path": path, **options}) as server:
        statuses = fill(server.target)
        lines = len(server.log().splitlines())
        spoil()
        statuses += fill(server.target, 1000) + fill(server.target)
        phase.check(f"requests with {name}", set(statuses) == {200}, sorted(set(statuses)), [200])
        failed = metric(server.target, "failed_steps")
        phase.check(f"failed steps with {name}", failed == 0, failed, 0)
        said = server.log().splitlines()[lines:]
        phase.at_most(f"lines in the log with {name}", len(said), MOST_LINES, "lines", said[-1][:200] if said else "")
        phase.check(f"no traceback with {name}", "Traceback" not in "\n".join(said))
        arena.check_tokens(phase, server.target, f"with {name}")
        begin = time.monotonic()
        code = server.end()
        waited = time.monotonic() - begin
        phase.check(f"the end with {name}", code == 0 and waited < TIER_END_S, f"{code} after {waited:.1f} s", 0)


def full_tier(arena: Arena, phase: Phase) -> None:
    """A tier on a disk of a few MB; where nothing can be mounted, files that may not grow."""
    with mounted(arena.home / "full", 4) as path:
        if path is not None:
            under_way(arena, phase, "a tier on a full disk", path, lambda: None, kv_offloading_disk_size=1)
            return
    shell = 'ulimit -f 200; exec "$@"'
    path = arena.home / "limited"
    under_way(arena, phase, "a tier whose files may not grow", path, lambda: None, shell=shell)


def vanishing_tier(arena: Arena, phase: Phase) -> None:
    """Somebody deletes the directory."""
    path = arena.home / "vanishing"
    under_way(arena, phase, "a tier that was deleted", path, lambda: shutil.rmtree(path, ignore_errors=True))


def read_only_tier(arena: Arena, phase: Phase) -> None:
    """The disk becomes read-only, as disks with errors do."""
    with mounted(arena.home / "readonly", 64) as path:
        if path is None:
            phase.notes.append("Nothing can be mounted here, so no tier was made read-only.")
            return
        command = ["mount", "-o", "remount,ro", str(path)]
        under_way(arena, phase, "a tier that became read-only", path, lambda: _quiet(command))


def foreign_files(arena: Arena, phase: Phase) -> None:
    """A directory in which others keep files: theirs stay, ours are bounded."""
    path = arena.home / "foreign"
    data = path / "data"
    data.mkdir(parents=True)
    old = time.time() - 86_400
    theirs = [data / "notes.tmp", data / "table.kv", data / "read.me", path / "a.tmp", path / "b.kv"]
    for file in theirs:
        file.write_bytes(b"ours")
        os.utime(file, (old, old))
    (data / "x.tmp").mkdir()
    os.utime(data / "x.tmp", (old, old))
    with arena.server(**SMALL, kv_offloading_disk_path=path, kv_offloading_disk_size=BOUND_GIB) as server:
        statuses = fill(server.target) + fill(server.target, 1000)
        phase.check("requests with a tier among foreign files", set(statuses) == {200}, sorted(set(statuses)), [200])
        time.sleep(1.0)  # the writer is a thread of its own
        size = sum(_size(file) for file in path.rglob("*"))
        phase.at_most("bytes of a bounded tier", size, BOUND_BYTES + PAGE_BYTES, "bytes")
        saved = metric(server.target, "kv_blocks_saved")
        phase.check("pages reach a tier among foreign files", saved > 0, saved, "more than 0")
    gone = [file.name for file in [*theirs, data / "x.tmp"] if not file.exists()]
    phase.check("foreign files stay", not gone, f"gone: {', '.join(gone)}" if gone else "all there", "all there")


def tier_below_a_file(arena: Arena, phase: Phase) -> None:
    """A path that cannot be a directory: refused with a sentence that names the argument."""
    file = arena.home / "a-file"
    file.write_text("")
    server = Server(arena.home, kv_offloading_disk_path=file / "kv")
    try:
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(30)
        code, words = server.process.poll(), server.log()
        good = code == 2 and "--kv-offloading-disk-path" in words and "Traceback" not in words
        phase.check("a tier below a file is refused", good, f"{code}: {words[-150:]}", "2 and a sentence")
    finally:
        server.kill()


def small_stack(arena: Arena, phase: Phase) -> None:
    """Threads with 256 KB of stack: served, or refused with a sentence."""
    server = Server(arena.home, shell='ulimit -s 256; exec "$@"')
    try:
        with suppress(RuntimeError):
            arena.check_tokens(phase, server.wait(), "with a small stack")
        code = server.process.poll()
        phase.check("no crash with a small stack", code in (None, 1, 2), code, "running, 1 or 2")
    finally:
        server.kill()


@contextmanager
def mounted(path: Path, megabytes: int) -> Iterator[Path | None]:
    """A file system in memory of so many MB; None where nothing may be mounted."""
    path.mkdir(exist_ok=True)
    options = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    good = _quiet(options)
    try:
        yield path if good else None
    finally:
        if good:
            _quiet(["umount", "-l", str(path)])


def _quiet(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except OSError:
        return False


def _size(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:
        return 0
