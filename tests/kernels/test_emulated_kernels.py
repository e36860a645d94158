"""The kernels of other and of older processors: compiled, by a cross compiler if need be, and run on emulated ones.

The program of `standalone/` compares results with plain loops in double precision, and prints digests of them; equal digests
are equal bits. Object files are kept in pytest's cache, since compiling a set takes minutes.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "plugins/platforms"
CHECK = Path(__file__).parent / "standalone"
COMPILERS = {"aarch64": ("aarch64-linux-gnu-g++", "aarch64-g++"), "x86_64": ("x86_64-linux-gnu-g++",)}
SETS = {"aarch64": ["generic", "neon", "neon_dot", "neon_bf16"], "x86_64": ["generic", "avx2"]}
PROCESSORS = [
    ("aarch64", "max", ["neon_bf16", "neon_dot", "neon", "generic"]),
    ("aarch64", "neoverse-n1", ["neon_dot", "neon", "generic"]),
    ("aarch64", "cortex-a72", ["neon", "generic"]),
    ("x86_64", "Haswell", ["avx2", "generic"]),
    ("x86_64", "Nehalem", ["generic"]),
]
PAIRS = (
    "activation 1",
    "over bfloat16",
    "over latent bfloat16",
    "over e4m3",
    "over e5m2",
    "over int8",
    "over 8 and 4",
    "bf16 1",
)
"""What BF16 instructions compute: Arm's add the two products of a pair otherwise than float32 does, one after the other."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # an hour for compilers on a busy machine


def build_tables():
    spec = importlib.util.spec_from_file_location("core_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(names, package):
    tool = next(filter(None, map(shutil.which, names)), None)
    return tool or pytest.skip(f"needs {names[0]} (Debian: {package})")


def emulator(machine):
    return found((f"qemu-{machine}", f"qemu-{machine}-static"), "qemu-user-static")


@pytest.fixture(scope="module")
def programs(request):
    """programs(machine, tiles=False) -> the stand-alone check for a machine, built once."""
    cache = request.config.cache.mkdir("emulated_kernels")
    return lambda machine, tiles=False: build(cache, machine, tiles)


def build(cache, machine, tiles):
    compiler = found(COMPILERS[machine], f"g++-{machine.replace('_', '-')}-linux-gnu")
    setup = build_tables()
    native, flags = ROOT / setup.NATIVE, setup.INSTRUCTION_SETS[machine]
    sets = ["avx2"] if tiles else SETS[machine]
    here = ["-fexceptions", "-I", str(native)]
    sources = {native / f"kernels_{name}.cpp": flags[name] for name in sets}
    sources |= {native / f"{name}.cpp": [] for name in setup.NAMES if name not in ("module", "dispatch")}
    sources |= {source: here for source in CHECK.glob("*.cpp")}
    if tiles:
        for name in ("kernels_tiles", "attention_tiles"):
            sources[CHECK / f"tiles/{name}.cpp"] = [*flags["avx2"], *here]
        sources[CHECK / "tiles/dispatch.cpp"] = here
    else:
        sources[native / "dispatch.cpp"] = [f"-DCORE_HAVE_{name.upper()}" for name in sets]
    objects = [compiled(cache, [compiler, *setup.COMMON, "-O2", *more], source) for source, more in sources.items()]
    program = cache / f"{machine}{'.tiles' * tiles}.program"
    subprocess.run([compiler, "-static", "-pthread", *objects, "-o", str(program)], check=True, timeout=100)
    return program


def compiled(cache, command, source):
    """Return the object file of a source, compiled unless the cache has that of the same text and command."""
    text = subprocess.run([*command, "-E", "-P", str(source)], capture_output=True, timeout=100, check=True).stdout
    name = f"{Path(command[0]).name}.{source.parent.name}.{source.stem}"
    digest = hashlib.sha256(repr(command).encode() + text).hexdigest()
    made = cache / f"{name}.{digest}.o"
    if made.exists():
        return str(made)
    for old in cache.glob(f"{name}.*.o"):
        old.unlink()
    partial = made.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [*command, "-c", str(source), "-o", str(partial)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    partial.rename(made)
    return str(made)


def ended(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    return done


def digests(output):
    """{table: [(case, digest)]} that a program has printed."""
    tables = {}
    for line in output.splitlines():
        if "\t" in line:
            table, case, digest = line.split("\t")
            tables.setdefault(table, []).append((case, digest))
    return tables


def other_bits(one, other):
    """The cases whose digests differ."""
    assert [case for case, _ in one] == [case for case, _ in other] and len(one) > 600
    return sorted({case for (case, digest), (_, wanted) in zip(one, other, strict=True) if digest != wanted})


@pytest.mark.parametrize(("machine", "cpu", "tables"), PROCESSORS)
def test_every_table_of_a_processor_computes_what_plain_loops_do(programs, machine, cpu, tables):
    """An instruction that the processor lacks would end the program."""
    said = ended(emulator(machine), "-cpu", cpu, programs(machine)).stdout
    assert said.splitlines() == [f"{table} ok" for table in tables]


def test_arm_has_the_bits_of_avx2(programs):
    """Of every kind of result; instructions for BF16 alone have their own way of adding."""
    arm = digests(ended(emulator("aarch64"), "-cpu", "max", programs("aarch64"), "digests").stdout)
    wanted = digests(ended(emulator("x86_64"), "-cpu", "Haswell", programs("x86_64"), "digests").stdout)["avx2"]
    for table in ("neon", "neon_dot"):
        assert other_bits(arm[table], wanted) == [], table
    assert [case for case in other_bits(arm["neon_bf16"], wanted) if not any(pair in case for pair in PAIRS)] == []


def test_tiles_have_the_bits_of_vectors(programs):
    """AMX, with tiles in plain C++: no emulator has them. Attention over pairs of BF16 has its own way of adding, and the
    program compares it with plain loops."""
    done = ended(emulator("x86_64"), "-cpu", "Haswell", programs("x86_64", tiles=True), "digests")
    tables = digests(done.stdout)
    others = other_bits(tables["amx"], tables["avx2"])
    assert [case for case in others if not (case.startswith("attention") and any(pair in case for pair in PAIRS))] == []
    told = {words: int(count) for count, words in re.findall(r"^(\d+) (tiles .*)$", done.stderr, re.MULTILINE)}
    assert told["tiles of products"] > 5_000 and told["tiles of attention"] > 5_000
