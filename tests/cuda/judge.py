"""One kernel compiled for one chip, without any GPU: what is wrong with it.

Owns: the compilation and the verdict. Never does: choose rows. Called by: the gate, tests of it.
"""

import hashlib
import re
import subprocess
import tempfile
from pathlib import Path

import msgspec
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from core_kernels.triton.compiling.catalog import KernelRow, for_chip, function_of, types_of
from core_kernels.triton.compiling.chips import Chip
from core_kernels.triton.compiling.launches import standing_in

FUSED = re.compile(r"\bfma\.rn\.f(?:32|64)|@llvm\.fmuladd|@llvm\.fma")
LOADS = re.compile(r"\bld\.global[\w.:]*?(?:\.v(\d))?\.b(\d+)\b")
COPIES = re.compile(r"\bcp\.async\.c[ag]\.shared\.global[^;]*?\], (0x[0-9a-f]+)")
HIP_LOADS = re.compile(r"\b(?:global|buffer)_load_(dwordx4|dwordx2|dword|ushort|ubyte)\b")
HIP_BYTES = {"dwordx4": 16, "dwordx2": 8, "dword": 4, "ushort": 2, "ubyte": 1}
EARLY = ("griddepcontrol.wait", "griddepcontrol.launch_dependents")
"""What a kernel says that is launched before the previous one has ended."""
SASS = re.compile(r"/\*([0-9a-f]{4,})\*/ +(?:@!?U?P\w+ +)?([A-Z]\w*)[^;/]*?(?:0x([0-9a-f]+)(?: +[&?][^;/]*)?)? *;")
"""Place, name and last number of an instruction; some versions of the tool then tell how it is scheduled."""
MATRIX = re.compile(r"[HQI]G?MMA|UTC\w*MMA|[OQ]MMA")
UNCOUNTED = re.compile(
    r"U[A-Z0-9]+$|LD|ST|ATOM|BAR|DEPBAR|MEMBAR|FENCE|WARP|BRA|BS|NOP|R2UR|S2|CS2|SYNCS|ELECT|CCTL|ERRBAR|EXIT"
)
WIDEST = 16
"""Bytes of the widest access."""
PIPELINED = 3
"""Stages from which a loop must read ahead."""
REGISTERS = 65536
"""Registers of a multiprocessor. A thread gets them by eights."""
RESERVED = 1024
"""Bytes of a multiprocessor's shared memory that each program takes beyond its own; one program may have the rest."""
LAYOUTS = re.compile(r"nvidia_mma<\{[^}]*warpsPerCTA = \[(\d+), (\d+)\]")
VERSIONS = f"triton {triton.__version__} with torch {torch.__version__.partition('+')[0]}"


class Verdict(msgspec.Struct, frozen=True):
    """What became of a row on a chip: no problem is a pass.

    versions: of triton and torch.
    digest: of everything that the compiler was given.
    function: `module:name` of the kernel.
    registers, shared: as compiled; shared memory in bytes.
    """

    versions: str
    digest: str
    row: str
    chip: str
    function: str
    problems: tuple[str, ...] = ()
    registers: int = 0
    shared: int = 0


def digest_of(row: KernelRow, chip: Chip) -> str:
    """Of the kernel's source, the row and the chip: another one has to be compiled again."""
    row = for_chip(row, chip.name)
    function = function_of(row)
    constants = {name: str(value) for name, value in row.constants.items()}
    options = (row.num_warps, row.num_stages, row.fp_fusion, row.uses_mma, row.no_fma, row.reads)
    options += (row.resident, row.whole_rows, row.holds)
    told = (
        function.cache_key,
        sorted(types_of(row).items()),
        sorted(constants.items()),
        options,
        (row.decodes, row.most_each),
        sorted(row.options.items()),
        chip,
    )
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def judged(row: KernelRow, chip: Chip) -> Verdict:
    """Compile and look."""
    verdict = Verdict(VERSIONS, digest_of(row, chip), row.name, chip.name, row.function)
    row = for_chip(row, chip.name)
    unknown = set(row.signature) | set(row.constants)
    unknown ^= set(function_of(row).arg_names)
    if unknown:
        return _failed(verdict, f"its arguments are not those of the function: {sorted(unknown)}")
    try:
        with standing_in(chip):  # some functions ask which chip it is
            kernel = _compiled(row, chip)
    except Exception as error:  # whatever a compiler raises is a verdict
        lines = [line for line in str(error).splitlines() if line.strip()]
        return _failed(verdict, f"does not compile: {type(error).__name__}: {' / '.join(lines[-3:])}")
    look = _look_hip if chip.backend == "hip" else _look_cuda
    problems, registers = look(row, chip, kernel)
    return msgspec.structs.replace(
        verdict, problems=tuple(problems), registers=registers, shared=kernel.metadata.shared
    )


def _failed(verdict: Verdict, problem: str) -> Verdict:
    return msgspec.structs.replace(verdict, problems=(problem,))


def _compiled(row: KernelRow, chip: Chip) -> triton.compiler.CompiledKernel:
    """The row for a chip, as launches of common models have it."""
    function = function_of(row)
    types = types_of(row)
    signature = {}
    attributes = {}
    for place, name in enumerate(function.arg_names):
        signature[name], _, multiple = types.get(name, "constexpr").partition(":")
        if multiple:
            attributes[place,] = [["tt.divisibility", int(multiple)]]
    source = ASTSource(fn=function, signature=signature, constexprs=dict(row.constants), attrs=attributes)
    options = {
        "num_warps": row.num_warps,
        "num_stages": row.num_stages,
        "enable_fp_fusion": row.fp_fusion,
        **row.options,
    }
    return triton.compile(source, target=GPUTarget(chip.backend, chip.arch, chip.warp), options=options)


def _look_cuda(row: KernelRow, chip: Chip, kernel: triton.compiler.CompiledKernel) -> tuple[list[str], int]:
    assembly = kernel.asm["ptx"]
    usage = _usage(kernel.asm["cubin"])
    problems = _common_problems(row, chip, assembly, kernel.metadata.shared)
    if usage.get("STACK", 0) or usage.get("LOCAL", 0):
        problems.append(f"spills: {usage.get('STACK', 0)} bytes of stack")
    if row.reads and row.num_stages >= PIPELINED:
        problems += _unstaged(row, assembly, kernel.metadata.shared)
    if row.no_fma:
        problems += _fused(assembly)
    if row.options.get("launch_pdl"):
        problems += [f"does not say {word}" for word in EARLY if word not in assembly]
    registers = usage.get("REG", 0)
    if row.resident > 1:
        problems += _crowded(row, chip, registers, kernel.metadata.shared)
    if row.whole_rows:
        problems += _torn(kernel.asm["ttgir"])
    if row.most_each:
        each = arithmetic_each(row, chip, kernel.asm["cubin"])
        if each > row.most_each:
            problems.append(f"decodes with {each:.2f} instructions a number; at most {row.most_each} are expected")
    return problems, registers


def _look_hip(row: KernelRow, chip: Chip, kernel: triton.compiler.CompiledKernel) -> tuple[list[str], int]:
    assembly = kernel.asm["amdgcn"]
    problems = _common_problems(row, chip, assembly, kernel.metadata.shared)
    spills = [int(count) for count in re.findall(r"\.[sv]gpr_spill_count:\s+(\d+)", assembly)]
    if any(spills):
        problems.append(f"spills: {sum(spills)} registers")
    if row.no_fma:
        # Divisions become fused instructions here, so the intermediate language is looked at.
        problems += _fused(kernel.asm["llir"])
    registers = re.findall(r"\.vgpr_count:\s+(\d+)", assembly)
    return problems, int(registers[-1]) if registers else 0


def _common_problems(row: KernelRow, chip: Chip, assembly: str, shared: int) -> list[str]:
    problems = []
    if shared > chip.shared:
        problems.append(f"takes {shared} bytes of shared memory; the chip has {chip.shared}")
    if row.uses_mma and not re.search(chip.matrix, assembly):
        problems.append(f"does not use the matrix units ({chip.matrix})")
    for pattern in row.holds:
        if not re.search(pattern, assembly):
            problems.append(f"holds nothing like {pattern}")
    if row.reads:
        problems += _narrow(row, chip, assembly)
    return problems


def _narrow(row: KernelRow, chip: Chip, assembly: str) -> list[str]:
    """A program should read its tiles in accesses as wide as the threads' shares of them allow."""
    threads = row.num_warps * chip.warp
    width = min(WIDEST, *(nbytes // threads for nbytes in row.reads))
    widths = _hip_widths(assembly) if chip.backend == "hip" else _load_widths(assembly) + _copy_widths(assembly)
    wide = sum(found for found in widths if found >= width)
    share = sum(row.reads) // threads
    return [] if wide >= share else [f"reads {wide} of {share} bytes a thread in accesses of {width} bytes"]


def _unstaged(row: KernelRow, assembly: str, shared: int) -> list[str]:
    """A pipeline should copy tiles ahead, with room in shared memory for all of its stages but one."""
    problems = []
    if not _copy_widths(assembly):
        problems.append("copies nothing ahead")
    least = (row.num_stages - 1) * sum(row.reads)
    if shared < least:
        problems.append(f"takes {shared} bytes of shared memory; the pipeline of {row.num_stages} stages needs {least}")
    return problems


def _crowded(row: KernelRow, chip: Chip, registers: int, shared: int) -> list[str]:
    """A multiprocessor should have registers and shared memory for some programs at once."""
    by_registers = REGISTERS // (-(-registers // 8) * 8 * row.num_warps * chip.warp)
    by_memory = (chip.shared + RESERVED) // (shared + RESERVED)
    fit = min(by_registers, by_memory)
    return [] if fit >= row.resident else [f"{fit} programs fit a multiprocessor, not {row.resident}"]


def _torn(ttgir: str) -> list[str]:
    """A product should not divide the columns of a row among warps."""
    layouts = LAYOUTS.findall(ttgir)
    if not layouts:
        return ["its products have no layout of matrix units"]
    return [f"divides rows among {columns} warps" for _, columns in layouts if columns != "1"]


def _load_widths(ptx: str) -> list[int]:
    """The bytes of each load from global memory."""
    return [int(many or 1) * int(bits) // 8 for many, bits in LOADS.findall(ptx)]


def _copy_widths(ptx: str) -> list[int]:
    """The bytes of each asynchronous copy to shared memory."""
    return [int(nbytes, 16) for nbytes in COPIES.findall(ptx)]


def _hip_widths(assembly: str) -> list[int]:
    """The bytes of each load from global memory."""
    return [HIP_BYTES[kind] for kind in HIP_LOADS.findall(assembly)]


def _fused(text: str) -> list[str]:
    found = FUSED.findall(text)
    return [f"{len(found)} fused multiplications and additions"] if found else []


def arithmetic_each(row: KernelRow, chip: Chip, cubin: bytes) -> float:
    """The vector instructions of arithmetic in the innermost loop with a matrix product, for each number of a weight that
    a thread decodes: moves between memories, barriers, branches and what is computed once for all threads left out.
    """
    found = [(int(place, 16), name, target) for place, name, target in SASS.findall(_dumped(cubin, "-sass"))]
    loops = []
    for place, name, target in found:
        if name == "BRA" and target and int(target, 16) < place:
            names = [each for at, each, _ in found if int(target, 16) <= at <= place]
            if any(MATRIX.match(each) for each in names):
                loops.append(names)
    if not loops:
        raise RuntimeError(f"{row.name}: no loop with a matrix product was found")
    inner = min(loops, key=len)
    counted = [name for name in inner if not MATRIX.match(name) and not UNCOUNTED.match(name)]
    return len(counted) * row.num_warps * chip.warp / row.decodes


def _usage(cubin: bytes) -> dict[str, int]:
    """What `cuobjdump -res-usage` says: REG, STACK, SHARED, LOCAL."""
    said = _dumped(cubin, "-res-usage")
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", said)}


def _dumped(cubin: bytes, what: str) -> str:
    """What `cuobjdump` says."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([str(tool), what, file.name], capture_output=True, text=True, timeout=60)
    if said.returncode:
        raise RuntimeError(f"cuobjdump says nothing of a cubin: {said.stderr.strip() or said.stdout.strip()}")
    return said.stdout
