"""What installed plugins cost at the start: their names, the manifests of one kind that is asked, and a whole resolve.

    python -m benchmarks.plugins [--plugins 200] [--repeat 15]

Prints milliseconds, the least and the median of many repetitions. Manifests are compiled beforehand, as pip does.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from core.plugin.discovery import discover
from core.plugin.kinds import KINDS, kind_named
from core.plugin.registry import PluginRegistry
from core_config.selection import select_quantization
from core_kit.checkpoints import write_checkpoint
from core_runtime.specs.checkpoint import CheckpointFacts

MANIFEST = """from core.plugin.hookspecs import PluginSpec, Probe, hookimpl
CONTRACT = 1
@hookimpl
def core_spec(): return PluginSpec(name={name!r}, summary="a plugin")
@hookimpl
def core_claim(facts): return None
@hookimpl
def core_probe(): return Probe(unavailable="no device")
@hookimpl
def core_load(context): return object()
"""
RESOLVE = """
import sys, time
from core_config.resolve import resolve
begin = time.perf_counter()
resolve({"model": sys.argv[1], "device": sys.argv[2]}, context="llm", environ={})
print((time.perf_counter() - begin) * 1e3)
"""


def write(site: Path, count: int, groups: tuple[str, ...]) -> Path:
    """`count` distributions with a plugin each, as pip leaves them."""
    for number in range(count):
        name, group = f"plugin_{number}", groups[number % len(groups)]
        package, info = site / f"package_{number}", site / f"package_{number}-1.0.dist-info"
        package.mkdir(parents=True)
        info.mkdir()
        (package / "__init__.py").write_text("")
        (package / "manifest.py").write_text(MANIFEST.format(name=name))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: package-{number}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = package_{number}.manifest\n")
    compileall.compile_dir(site, quiet=1)
    return site


def summary(milliseconds: list[float]) -> dict[str, float]:
    """Least and median."""
    return {"least": round(min(milliseconds), 2), "median": round(statistics.median(milliseconds), 2)}


def timed(work: Callable[[], object], repeat: int) -> dict[str, float]:
    """Of `repeat` calls in this thread."""
    found = []
    for _ in range(repeat):
        begin = time.perf_counter()
        work()
        found.append((time.perf_counter() - begin) * 1e3)
    return summary(found)


def in_thread(work: Callable[[], object], repeat: int) -> dict[str, float]:
    """The same in another thread than the main one, where time limits have no signals."""
    found: dict[str, float] = {}
    thread = threading.Thread(target=lambda: found.update(timed(work, repeat)))
    thread.start()
    thread.join()
    return found


def ask_all_methods() -> None:
    """Import every manifest afresh and ask all methods of a checkpoint that declares none."""
    for name in [name for name in sys.modules if name.startswith("package_")]:
        del sys.modules[name]
    select_quantization(PluginRegistry(), None, CheckpointFacts("m", "x", "strange"))


def starts(model: Path, sites: dict[str, list[Path]], repeat: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Resolving a configuration in fresh processes, interleaved."""
    found: dict[str, list[float]] = {}
    root = Path(__file__).parents[1]
    for _ in range(repeat):
        for device in ("cpu", "auto"):
            for name, paths in sites.items():
                environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*paths, root]))}
                command = [sys.executable, "-P", "-c", RESOLVE, str(model), device]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                found.setdefault(f"resolve --device {device}, {name}", []).append(float(done.stdout))
    for name, times in found.items():
        yield name, summary(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugins", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, path = write_checkpoint(Path(folder) / "model"), list(sys.path)
        mixed = write(Path(folder) / "mixed", options.plugins, tuple(kind.group for kind in KINDS))
        methods = write(Path(folder) / "methods", options.plugins, (kind_named("quantization").group,))
        found: dict[str, object] = {"plugins": options.plugins}
        found["names without them"] = timed(lambda: discover(path), options.repeat)
        found["names with them"] = timed(lambda: discover([str(mixed), *path]), options.repeat)
        sys.path.insert(0, str(methods))
        found["all of them methods, asked"] = timed(ask_all_methods, options.repeat)
        found["the same in a thread"] = in_thread(ask_all_methods, options.repeat)
        found |= starts(
            model, {"without them": [], "with them": [mixed], "all of them methods": [methods]}, options.repeat
        )
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
