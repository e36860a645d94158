"""What installed plugins cost at the start: names of 200 distributions, and importing the manifests of one kind.

    python -m benchmarks.plugins [--plugins 200] [--repeat 20]

Prints milliseconds, the least and the median of many repetitions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from core.plugin.discovery import discover
from core.plugin.registry import PluginRegistry

GROUPS = ("core.attention", "core.quantization", "core.platforms", "core.loaders", "core.speculative", "core.kernels")
MANIFEST = """from core.plugin.hookspecs import PluginSpec, hookimpl
CONTRACT = 1
@hookimpl
def core_spec(): return PluginSpec(name={name!r}, summary="a plugin")
@hookimpl
def core_claim(facts): return None
@hookimpl
def core_load(context): return object()
"""


def write(site: Path, count: int) -> None:
    """`count` distributions with a plugin each, as pip leaves them."""
    for number in range(count):
        name, group = f"plugin_{number}", GROUPS[number % len(GROUPS)]
        package, info = site / f"package_{number}", site / f"package_{number}-1.0.dist-info"
        package.mkdir()
        info.mkdir()
        (package / "__init__.py").write_text("")
        (package / "manifest.py").write_text(MANIFEST.format(name=name))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: package-{number}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = package_{number}.manifest\n")


def milliseconds(work: Callable[[], object], repeat: int) -> dict[str, float]:
    """Least and median of `repeat` runs."""
    seconds = []
    for _ in range(repeat):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return {"least": round(min(seconds) * 1e3, 2), "median": round(statistics.median(seconds) * 1e3, 2)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugins", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        path = list(sys.path)
        before = milliseconds(lambda: discover(path), options.repeat)
        write(site, options.plugins)
        sys.path.insert(0, folder)
        found = {
            "plugins": options.plugins,
            "names without them": before,
            "names with them": milliseconds(lambda: discover([folder, *path]), options.repeat),
            "registry and one choice": milliseconds(
                lambda: PluginRegistry().get("speculative", "ngram"), options.repeat
            ),
            "importing all loaders once": milliseconds(lambda: PluginRegistry().candidates("loader"), 1),
        }
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
