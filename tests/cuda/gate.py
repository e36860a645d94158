"""The gate: every row of the catalog of Triton kernels is compiled for every chip that it names, without any GPU.

A row passes when it compiles, spills no register, stays within the chip's shared memory, uses the matrix units where it
must, holds no fused multiplication and addition where it must not, reads memory in wide accesses, copies the tiles of a
pipeline ahead, and fits a multiprocessor as often and keeps rows as whole as the row says.

    python -m tests.cuda.gate [--rows WORD] [--chips sm_90,...] [--jobs N] [--verdicts FILE] [--report docs/gpu-gate.md]

With `--verdicts` each verdict is kept, and what was compiled before is not compiled again: a run that was interrupted goes
on. The page is about all versions of triton whose verdicts the file has. It must run in a process of its own: Triton
either interprets or compiles.
"""

import argparse
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

from core_kernels.triton.compiling.catalog import KernelRow, kernel_rows
from core_kernels.triton.compiling.chips import CHIPS, Chip
from tests.cuda.gate_page import page
from tests.cuda.judge import VERSIONS, Verdict, digest_of, judged

Place = tuple[str, str, str]
"""Versions, row and chip of a verdict."""


def pairs(rows: Iterable[KernelRow], chips: Iterable[Chip]) -> list[tuple[KernelRow, Chip]]:
    """Every row with each of its chips."""
    chosen = {chip.name: chip for chip in chips}
    return [(row, chosen[name]) for row in rows for name in row.chips if name in chosen]


def kept_verdicts(file: Path | None) -> dict[Place, Verdict]:
    """Those of earlier runs; a last line that is not whole is left out."""
    if file is None or not file.exists():
        return {}
    found = {}
    for line in file.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            verdict = msgspec.json.decode(line, type=Verdict)
            found[_place(verdict)] = verdict
    return found


def _place(verdict: Verdict) -> Place:
    return verdict.versions, verdict.row, verdict.chip


def judge_all(todo: list[tuple[KernelRow, Chip]], jobs: int, file: Path | None) -> list[Verdict]:
    """The verdicts in the order of `todo`, and said where something is wrong. jobs: 0: those that are kept alone."""
    kept = kept_verdicts(file)
    found: dict[tuple[str, str], Verdict] = {}
    missing = []
    for row, chip in todo:
        before = kept.get((VERSIONS, row.name, chip.name))
        if before is not None and before.digest == digest_of(row, chip):
            found[row.name, chip.name] = before
        else:
            missing.append((row.name, chip.name))
    if missing and jobs:
        with ProcessPoolExecutor(jobs) as pool:
            waiting = [pool.submit(_judged_named, names) for names in missing]
            for number, future in enumerate(as_completed(waiting), start=1):
                verdict = future.result()
                found[verdict.row, verdict.chip] = verdict
                _keep(verdict, file)
                if number % 50 == 0:
                    print(f"{number} of {len(missing)}", flush=True)
    places = [(row.name, chip.name) for row, chip in todo]
    return [found[place] for place in places if place in found]


def _keep(verdict: Verdict, file: Path | None) -> None:
    for problem in verdict.problems:
        print(f"{verdict.chip}: {verdict.row}: {problem}", flush=True)
    if file is not None:
        with file.open("ab") as kept:
            kept.write(msgspec.json.encode(verdict) + b"\n")


def _judged_named(names: tuple[str, str]) -> Verdict:
    row_name, chip_name = names
    row = next(row for row in kernel_rows() if row.name == row_name)
    chip = next(chip for chip in CHIPS if chip.name == chip_name)
    return judged(row, chip)


def _of_other_versions(kept: dict[Place, Verdict], todo: list[tuple[KernelRow, Chip]]) -> list[Verdict]:
    """Kept verdicts of other versions of triton in the order of `todo`, as far as the rows are still there; only those can
    tell what changed.
    """
    order = {(row.name, chip.name): index for index, (row, chip) in enumerate(todo)}
    others = [one for one in kept.values() if one.versions != VERSIONS and (one.row, one.chip) in order]
    return sorted(others, key=lambda one: (one.versions, order[one.row, one.chip]))


def main() -> int:
    """Judge; 1 when something failed, with other versions too if a page is written about them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only rows whose names contain this")
    parser.add_argument("--chips", default=",".join(chip.name for chip in CHIPS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="0: compile nothing, tell what is kept")
    parser.add_argument("--verdicts", type=Path, help="keep verdicts here, and take those that are there")
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    chosen = arguments.chips.split(",")
    rows = [row for row in kernel_rows() if arguments.rows in row.name]
    todo = pairs(rows, [chip for chip in CHIPS if chip.name in chosen])
    verdicts = judge_all(todo, arguments.jobs, arguments.verdicts)
    failed = sum(1 for verdict in verdicts if verdict.problems)
    print(f"{VERSIONS}: {len(verdicts)} compilations, {failed} failed")
    if arguments.report:
        verdicts += _of_other_versions(kept_verdicts(arguments.verdicts), todo)
        arguments.report.write_text(page(verdicts, len(todo)))
    return 1 if any(verdict.problems for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
