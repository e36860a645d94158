"""The page about the gate: what was compiled by which versions, a table by kernel and chip, and every configuration.

Owns: the text of `docs/gpu-gate.md`. Never does: compile. Called by: the gate.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

from core_kernels.triton.compiling.chips import CHIPS
from tests.cuda.judge import Verdict

NAMES = tuple(chip.name for chip in CHIPS)
KIB = 1024
HEAD = """# The gate of GPU kernels

Written by `make gpu-gate`, which compiles every configuration of every Triton kernel for every chip that uses it, without
a GPU. A configuration passes when it compiles, spills no register, stays within the chip's shared memory, uses the matrix
units where it must, and holds no fused multiplication and addition where the sampler must round twice. Products, attention,
norms and elementwise kernels must also read memory in accesses as wide as their threads' shares allow, up to 16 bytes, and
copy the tiles of a pipeline of 3 stages or more into shared memory ahead. Where attention has two tiles, that for few rows
must leave a multiprocessor registers and shared memory for two programs, and both must keep each row of a product within a
warp. Strides and widths are taken as multiples of 16, as those of common models are. What this cannot show: races, speed,
and memory out of bounds. What is compiled for gfx942 is untested.
"""


def page(verdicts: Sequence[Verdict], wanted: int) -> str:
    """The page. verdicts: of one or more versions of triton. wanted: how many each should have."""
    parts = [HEAD]
    versions = sorted({verdict.versions for verdict in verdicts}, key=_by_number)
    for name in versions:
        mine = [verdict for verdict in verdicts if verdict.versions == name]
        failed = sum(1 for verdict in mine if verdict.problems)
        missing = f"; {wanted - len(mine)} were not made yet" if len(mine) < wanted else ""
        parts.append(f"**{name}**: {len(mine)} compilations, {failed} failed{missing}.\n")
    failures = [verdict for verdict in verdicts if verdict.problems]
    if failures:
        parts.append("## What failed\n")
        parts.append("\n".join(_failure(verdict) for verdict in failures) + "\n")
    for name in reversed(versions):
        mine = [verdict for verdict in verdicts if verdict.versions == name]
        parts += [f"## {name}\n", _by_kernel(mine)]
    newest = [verdict for verdict in verdicts if verdict.versions == versions[-1]]
    parts += [f"## Every configuration, {versions[-1]}\n", _every(newest)]
    return "\n".join(parts)


def _failure(verdict: Verdict) -> str:
    return f"- {verdict.versions}, {verdict.chip}, {verdict.row}: {'; '.join(verdict.problems)}"


def _by_kernel(verdicts: Sequence[Verdict]) -> str:
    """One line a kernel: how many configurations a chip has, and the most that one of them takes."""
    kernels: dict[str, dict[str, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
    for verdict in verdicts:
        kernels[_kernel(verdict)][verdict.chip].append(verdict)
    lines = [
        "Configurations, and the most registers / KiB of shared memory that one of them takes.",
        "",
        *_heading("kernel"),
    ]
    for kernel, by_chip in kernels.items():
        cells = " | ".join(_most(by_chip.get(chip, [])) for chip in NAMES)
        lines.append(f"| {kernel} | {cells} |")
    return "\n".join(lines) + "\n"


def _every(verdicts: Sequence[Verdict]) -> str:
    """One line a configuration, with all chips that have one of its name."""
    rows: dict[str, dict[str, Verdict]] = defaultdict(dict)
    for verdict in verdicts:
        name = verdict.row.removesuffix(f" ({verdict.chip})")
        rows[name][verdict.chip] = verdict
    lines = ["Registers / KiB of shared memory.", "", *_heading("configuration")]
    for name, by_chip in rows.items():
        cells = " | ".join(_cell(by_chip.get(chip)) for chip in NAMES)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines) + "\n"


def _heading(first: str) -> tuple[str, str]:
    return f"| {first} | {' | '.join(NAMES)} |", f"|---|{'---|' * len(NAMES)}"


def _kernel(verdict: Verdict) -> str:
    """`attention.attend` of `core_attention.triton.attend_kernel:attend`."""
    module, _, name = verdict.function.partition(":")
    kind = module.split(".")[1]
    return f"{kind}: {name}"


def _most(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return ""
    failed = sum(1 for verdict in verdicts if verdict.problems)
    registers = max(verdict.registers for verdict in verdicts)
    shared = max(verdict.shared for verdict in verdicts)
    said = f"{len(verdicts)}: {registers} / {_kib(shared)}"
    return f"{said}, **{failed} failed**" if failed else said


def _cell(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    return "**failed**" if verdict.problems else f"{verdict.registers} / {_kib(verdict.shared)}"


def _kib(nbytes: int) -> str:
    return f"{nbytes / KIB:.1f}".removesuffix(".0")


def _by_number(versions: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", versions)]
