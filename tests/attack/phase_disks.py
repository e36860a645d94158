"""KV tiers on disks that are full, foreign, read-only or gone."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.attack.arena import Arena
from tests.attack.make import completion
from tests.attack.results import Clock, Phase
from tests.attack.row import Row
from tests.attack.send import Target, send
from tests.attack.server import Server, metric

SMALL = {"max_model_len": 256, "kv_cache_memory_bytes": "16M"}
PROMPTS, PROMPT_WORDS = 10, 150
BOUND_GIB, BOUND_BYTES = 0.004, 0.004 * 2**30
PAGE_BYTES = 2 * 2**20
MB = 1_000_000
MOST_LINES = 40
TIER_END_S = 20.0


def run(arena: Arena, phase: Phase, seconds: float) -> None:
    """All kinds, each on a server of its own, as far as there is time."""
    kinds = (foreign_files, full_tier, vanishing_tier, read_only_tier, tier_below_a_file)
    steps = {kind.__name__.replace("_", " "): partial(kind, arena, phase) for kind in kinds}
    arena.each(phase, steps, Clock(seconds))


def fill(target: Target, first: int = 0) -> list[int]:
    """Prompts enough to push others out of the KV cache; their statuses."""
    bodies = [
        completion(prompt=f"{first + number} " + "tree " * PROMPT_WORDS, max_tokens=2) for number in range(PROMPTS)
    ]
    return [send(target, Row("fill", "/v1/completions", body)).status for body in bodies]


def under_way(
    arena: Arena, phase: Phase, name: str, path: Path, spoil: Callable[[], object], **options: object
) -> None:
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
        phase.at_most("size of a bounded tier", size / MB, (BOUND_BYTES + PAGE_BYTES) / MB, "MB")
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


@contextmanager
def mounted(path: Path, megabytes: int) -> Iterator[Path | None]:
    """A file system in memory of so many MB; None where nothing may be mounted."""
    path.mkdir(exist_ok=True)
    options = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(path)]
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
