"""Damaged files for every reader: `python -m tests.fuzz.run [--minutes 10] [--only gguf ...] [--seed N]`, or `make fuzz`.

Owns: the workers and what they found. Never does: read a file itself. Findings are kept in `tests/fuzz/corpus/TARGET/`, one
file each with its name in front, and replayed by `make test`.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.targets import ROOT, TARGETS

CORPUS = Path(__file__).parent / "corpus"
MARGIN_S = 60


def main() -> None:
    """Run, and end with 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", nargs="*", choices=sorted(TARGETS), default=sorted(TARGETS))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    seconds = given.minutes * 60 / len(given.only)
    found = 0
    for name in given.only:
        found += run_target(name, given.seed, seconds)
    print(f"{found} findings; seed {given.seed}")
    sys.exit(1 if found else 0)


def run_target(name: str, seed: int, seconds: float) -> int:
    """How many findings a worker had; a worker that dies is one, and is followed by another."""
    end = time.monotonic() + seconds
    found = cases = 0
    while (left := end - time.monotonic()) > 1:
        with tempfile.TemporaryDirectory() as folder:
            lines, code = _worker(name, seed, left, folder)
            seed += 1
            for line in lines:
                if "cases" in line:
                    cases += line["cases"]
                    continue
                found += 1
                keep(name, line["file"], bytes.fromhex(line["data"]), line["told"])
            if code and not (Path(folder) / "case").exists():
                raise SystemExit(f"{name}: the worker ended with {code} before its first case")
            if code:
                found += 1
                _keep_last(name, Path(folder), code)
    print(f"{name:14s} {cases:8d} cases, {found} findings", flush=True)
    return found


def _worker(name: str, seed: int, seconds: float, folder: str) -> tuple[list[dict], int]:
    command = [sys.executable, "-m", "tests.fuzz.worker", name, str(seed), str(seconds), folder]
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=seconds + MARGIN_S, check=False)
    except subprocess.TimeoutExpired as late:
        return [json.loads(line) for line in (late.stdout or b"").splitlines() if line.endswith(b"}")], -1
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{") and line.endswith(b"}")]
    return lines, done.returncode


def _keep_last(name: str, folder: Path, code: int) -> None:
    """The case at which a worker died."""
    for file in TARGETS[name].damaged:
        path = folder / "case" / file
        if path.is_file():
            keep(name, file, path.read_bytes(), f"the process ended with {code}")


def keep(name: str, file: str, data: bytes, told: str) -> None:
    """Write a finding to the corpus, and say it."""
    digest = hashlib.sha256(data).hexdigest()[:12]
    place = CORPUS / name
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{digest}-{file}"
    path.write_bytes(data)
    print(f"{path.relative_to(ROOT)}: {told.strip()}\n", flush=True)


if __name__ == "__main__":
    main()
