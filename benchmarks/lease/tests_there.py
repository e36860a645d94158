"""The project's own tests on the device, and under compute-sanitizer.

Owns: which tests, and their outcomes as rows. Never does: compare anything itself. Called by: stage 1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.lease.place import Place
from benchmarks.lease.rows import Row

EVERY = "slow or not slow"
"""All tests but none in particular: without it, pytest leaves out those that take long in the interpreter."""
QUICK = ("test_operations.py",)
"""Of a rehearsal."""
CHECKED = {
    "attend and merge": ("tests/cuda/test_attention.py", "bits_depend"),
    "turn and write": ("tests/cuda/test_turning.py", ""),
    "product": ("tests/cuda/test_products.py", "odd_sizes"),
    "limits and draw": ("tests/cuda/test_race.py", "filters"),
}
"""Kernels that are run under compute-sanitizer, and the tests that launch them."""
TOOLS = ("memcheck", "racecheck")


def kernels(place: Place) -> Iterator[Row]:
    """Every kernel against the reference."""
    files = [f"tests/cuda/{name}" for name in QUICK] if place.tiny else ["tests/cuda"]
    parallel = ["-p", "no:xdist"] if place.tiny else ["-n", str(min(12, os.cpu_count() or 1))]
    ignored = ["--ignore=tests/cuda/test_gate.py"]
    yield from run("kernels", [*parallel, "-m", EVERY, "--on-device", place.device.type, *ignored, *files])


def device(place: Place) -> Iterator[Row]:
    """The tests of the platform, which compute nothing on a processor."""
    options = ["--collect-only"] if place.is_cpu else []
    yield from run("device", ["-p", "no:xdist", "-m", "gpu", "tests/gpu", *options])


def run(name: str, options: Sequence[str]) -> Iterator[Row]:
    """Run pytest; yield how many tests passed, and a row for each that did not."""
    command = [sys.executable, "-m", "pytest", "-vv", "-rfE", "--tb=short", "--color=no", *options]
    log = out() / f"{name}.log"
    passed = 0
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            file.flush()
            passed += bool(re.search(r"\bPASSED\b", line))
            failed = re.match(r"(FAILED|ERROR) (\S.*)", line)
            if failed:
                yield Row("", failed[2][:300])
        code = process.wait()
    yield Row("", f"tests passed; pytest ended with {code}, see {log.name}", passed, "tests", is_fine=True)
    if code not in (0, 1):
        yield Row("", f"pytest ended with {code}; see {log.name}")


def sanitizer(place: Place) -> Iterator[Row]:
    """Out-of-bounds accesses and races of some kernels, which no comparison of numbers shows."""
    tool = shutil.which("compute-sanitizer")
    for name, (file, words) in CHECKED.items():
        options = ["-p", "no:xdist", "-x", "-q", "-m", "not gpu", "--on-device", place.device.type, file]
        options += ["-k", words] if words else []
        pytest = [sys.executable, "-m", "pytest", *options]
        if place.tiny:
            pytest.append("--collect-only")
        if tool is None or place.is_cpu:
            done = subprocess.run([*pytest, "--collect-only"], capture_output=True, text=True, check=False)
            there = "a processor has none" if place.is_cpu else "compute-sanitizer is not there"
            yield Row("", f"{name}: {there}", is_fine=done.returncode == 0)
            continue
        for kind in TOOLS:
            command = [tool, "--tool", kind, "--error-exitcode", "9", "--target-processes", "all", *pytest]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            (out() / f"{kind}-{name.replace(' ', '-')}.log").write_text(done.stdout + done.stderr)
            said = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR SUMMARY" in line]
            words_of_it = said[-1].strip("= ") if said else f"ended with {done.returncode}"
            yield Row("", f"{kind} of {name}: {words_of_it}", is_fine=done.returncode == 0)


def out() -> Path:
    """Return the folder for logs."""
    return Path(os.environ.get("OUT") or "build/lease/out")
