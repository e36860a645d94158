"""The gate: every row of the catalog of Triton kernels is compiled for every chip that it names, without any GPU.

A row passes when it compiles, spills no register, stays within the chip's shared memory, uses the matrix units where it
must, and holds no fused multiplication and addition where it must not.

    python -m tests.cuda.gate [--rows WORD] [--chips sm_90,...] [--report docs/gpu-gate.md]

It must run in a process of its own: Triton either interprets or compiles.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from core_plugins.kernels.triton.catalog import KernelRow, function_of, kernel_rows
from core_plugins.kernels.triton.chips import CHIPS, Chip

FUSED = re.compile(r"\bfma\.rn\.f(?:32|64)|@llvm\.fmuladd|@llvm\.fma")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a row on a chip: no problem is a pass. registers and shared (bytes): as compiled."""

    row: str
    chip: str
    problems: tuple[str, ...]
    registers: int = 0
    shared: int = 0


def compiled(row: KernelRow, chip: Chip) -> triton.compiler.CompiledKernel:
    """The row for a chip; pointers are aligned to 16 bytes."""
    function = function_of(row)
    signature = {}
    attributes = {}
    for place, name in enumerate(function.arg_names):
        kind = row.signature.get(name, "constexpr")
        signature[name] = kind
        if kind.startswith("*"):
            attributes[place,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=function, signature=signature, constexprs=dict(row.constants), attrs=attributes)
    options = {
        "num_warps": row.num_warps,
        "num_stages": row.num_stages,
        "enable_fp_fusion": row.fp_fusion,
        **row.options,
    }
    return triton.compile(source, target=GPUTarget(chip.backend, chip.arch, chip.warp), options=options)


def judged(row: KernelRow, chip: Chip) -> Verdict:
    """Compile and look."""
    unknown = set(row.signature) | set(row.constants)
    unknown ^= set(function_of(row).arg_names)
    if unknown:
        return Verdict(row.name, chip.name, (f"its arguments are not those of the function: {sorted(unknown)}",))
    try:
        kernel = compiled(row, chip)
    except Exception as error:  # whatever a compiler raises is a verdict
        lines = [line for line in str(error).splitlines() if line.strip()]
        return Verdict(row.name, chip.name, (f"does not compile: {type(error).__name__}: {' / '.join(lines[-3:])}",))
    if chip.backend == "hip":
        return _judged_hip(row, chip, kernel)
    return _judged_cuda(row, chip, kernel)


def _judged_cuda(row: KernelRow, chip: Chip, kernel: triton.compiler.CompiledKernel) -> Verdict:
    assembly = kernel.asm["ptx"]
    usage = _usage(kernel.asm["cubin"])
    problems = _common_problems(row, chip, assembly, kernel.metadata.shared)
    if usage.get("STACK", 0) or usage.get("LOCAL", 0):
        problems.append(f"spills: {usage.get('STACK', 0)} bytes of stack")
    if row.no_fma:
        problems += _fused(assembly)
    return Verdict(row.name, chip.name, tuple(problems), usage.get("REG", 0), kernel.metadata.shared)


def _judged_hip(row: KernelRow, chip: Chip, kernel: triton.compiler.CompiledKernel) -> Verdict:
    assembly = kernel.asm["amdgcn"]
    problems = _common_problems(row, chip, assembly, kernel.metadata.shared)
    spills = [int(count) for count in re.findall(r"\.[sv]gpr_spill_count:\s+(\d+)", assembly)]
    if any(spills):
        problems.append(f"spills: {sum(spills)} registers")
    if row.no_fma:
        # Divisions become fused instructions here, so the intermediate language is looked at.
        problems += _fused(kernel.asm["llir"])
    registers = re.findall(r"\.vgpr_count:\s+(\d+)", assembly)
    return Verdict(row.name, chip.name, tuple(problems), int(registers[-1]) if registers else 0, kernel.metadata.shared)


def _common_problems(row: KernelRow, chip: Chip, assembly: str, shared: int) -> list[str]:
    problems = []
    if shared > chip.shared:
        problems.append(f"takes {shared} bytes of shared memory; the chip has {chip.shared}")
    if row.uses_mma and not re.search(chip.matrix, assembly):
        problems.append(f"does not use the matrix units ({chip.matrix})")
    return problems


def _fused(text: str) -> list[str]:
    found = FUSED.findall(text)
    return [f"{len(found)} fused multiplications and additions"] if found else []


def _usage(cubin: bytes) -> dict[str, int]:
    """What `cuobjdump -res-usage` says: REG, STACK, SHARED, LOCAL."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, timeout=60)
    if said.returncode:
        raise RuntimeError(f"cuobjdump says nothing of a cubin: {said.stderr.strip() or said.stdout.strip()}")
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", said.stdout)}


def pairs(rows: Iterable[KernelRow], chips: Iterable[Chip]) -> list[tuple[KernelRow, Chip]]:
    """Every row with each of its chips."""
    chosen = {chip.name: chip for chip in chips}
    return [(row, chosen[name]) for row in rows for name in row.chips if name in chosen]


def report(verdicts: list[Verdict]) -> str:
    """A page: one line a row, what each chip says of it."""
    by_row: dict[str, dict[str, str]] = defaultdict(dict)
    for verdict in verdicts:
        said = f"{verdict.registers} / {verdict.shared}" if not verdict.problems else "; ".join(verdict.problems)
        by_row[verdict.row][verdict.chip] = said
    names = [chip.name for chip in CHIPS]
    failed = sum(1 for verdict in verdicts if verdict.problems)
    lines = [
        "# The gate of GPU kernels",
        "",
        "Written by `make gpu-gate`, which compiles every configuration of every Triton kernel for every chip that uses it,",
        "without a GPU. A cell holds registers / bytes of shared memory, or what is wrong: a register that is spilled, more",
        "shared memory than the chip has, matrix units that are not used where they must be, or a fused multiplication and",
        "addition where the sampler must round twice. What this cannot show: races, speed, and memory out of bounds. The",
        "configurations of gfx942 compile and are untested.",
        "",
        f"triton {triton.__version__}: {len(verdicts)} compilations, {failed} failed.",
        "",
        f"| kernel | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for row, said in by_row.items():
        cells = " | ".join(said.get(name, "") for name in names)
        lines.append(f"| {row} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Judge; 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only rows whose names contain this")
    parser.add_argument("--chips", default=",".join(chip.name for chip in CHIPS))
    parser.add_argument("--report", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    chosen = arguments.chips.split(",")
    rows = [row for row in kernel_rows() if arguments.rows in row.name]
    todo = pairs(rows, [chip for chip in CHIPS if chip.name in chosen])
    names = [(row.name, chip.name) for row, chip in todo]
    verdicts = []
    with ProcessPoolExecutor(arguments.workers) as pool:
        for verdict in pool.map(_judged_named, names, chunksize=4):
            verdicts.append(verdict)
            for problem in verdict.problems:
                print(f"{verdict.chip}: {verdict.row}: {problem}", flush=True)
    failed = sum(1 for verdict in verdicts if verdict.problems)
    print(f"triton {triton.__version__}: {len(verdicts)} compilations, {failed} failed")
    if arguments.report:
        arguments.report.write_text(report(verdicts))
    return 1 if failed else 0


def _judged_named(names: tuple[str, str]) -> Verdict:
    row_name, chip_name = names
    row = next(row for row in kernel_rows() if row.name == row_name)
    chip = next(chip for chip in CHIPS if chip.name == chip_name)
    return judged(row, chip)


if __name__ == "__main__":
    sys.exit(main())
