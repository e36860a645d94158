"""The kernels of other and of older processors: compiled, by a cross compiler if need be, and run on emulated ones."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "plugins/platforms"
TOOLS = {
    "aarch64": (("aarch64-linux-gnu-g++", "aarch64-g++"), "qemu-aarch64"),
    "x86_64": (("x86_64-linux-gnu-g++",), "qemu-x86_64"),
}
PROCESSORS = [
    ("aarch64", "max", ["neon_bf16", "neon_dot", "neon", "generic"]),
    ("aarch64", "neoverse-n1", ["neon_dot", "neon", "generic"]),
    ("aarch64", "cortex-a72", ["neon", "generic"]),
    ("x86_64", "Haswell", ["avx2", "generic"]),
    ("x86_64", "Nehalem", ["generic"]),
]


def build_tables():
    spec = importlib.util.spec_from_file_location("core_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Builds the stand-alone check for a machine, once."""
    built = {}

    def program(machine):
        if machine not in built:
            compilers, emulator = TOOLS[machine]
            compiler = next(filter(None, map(shutil.which, compilers)), None)
            if not (compiler and shutil.which(emulator)):
                pytest.skip(f"needs {compilers[0]} and {emulator} (Debian: g++-aarch64-linux-gnu, g++, qemu-user)")
            built[machine] = compile_program(machine, compiler, tmp_path_factory.mktemp(machine))
        return built[machine]

    return program


def compile_program(machine, compiler, directory):
    setup = build_tables()
    native, sets = ROOT / setup.NATIVE, setup.INSTRUCTION_SETS[machine]
    macros = [f"-DCORE_HAVE_{name.upper()}" for name in sets]
    sources = {native / f"kernels_{name}.cpp": flags for name, flags in sets.items()}
    sources |= {native / f"{name}.cpp": macros for name in setup.NAMES if name != "module"}
    sources[Path(__file__).parent / "standalone.cpp"] = ["-fexceptions", "-I", str(native)]
    objects = []
    for source, flags in sources.items():
        objects.append(str(directory / f"{source.stem}.o"))
        command = [compiler, *setup.COMMON, "-O2", *flags, "-c", str(source), "-o", objects[-1]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0 and not done.stderr, done.stderr
    program = directory / "standalone"
    subprocess.run([compiler, "-static", "-pthread", *objects, "-o", str(program)], check=True, timeout=100)
    return program


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("machine", "cpu", "tables"), PROCESSORS)
def test_every_table_of_a_processor_computes_what_plain_loops_do(programs, machine, cpu, tables):
    """An instruction that the processor lacks would end the program."""
    command = [TOOLS[machine][1], "-cpu", cpu, str(programs(machine))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines() == [f"{table} ok" for table in tables], done.stdout + done.stderr
    assert done.returncode == 0
