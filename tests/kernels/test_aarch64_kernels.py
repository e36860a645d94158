"""The kernels for aarch64, compiled by a cross compiler and run on emulated processors."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


def build_tables():
    spec = importlib.util.spec_from_file_location("core_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        pytest.skip(f"needs {COMPILER} and {EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user)")
    setup, directory = build_tables(), tmp_path_factory.mktemp("aarch64")
    sets = setup.INSTRUCTION_SETS["aarch64"]
    macros = [f"-DCORE_HAVE_{name.upper()}" for name in sets]
    sources = {ROOT / setup.NATIVE / f"kernels_{name}.cpp": flags for name, flags in sets.items()}
    common = [name for name in setup.NAMES if name != "module"]
    sources |= {ROOT / setup.NATIVE / f"{name}.cpp": macros for name in common}
    sources[Path(__file__).parent / "standalone.cpp"] = ["-fexceptions", "-I", str(ROOT / setup.NATIVE)]
    objects = []
    for source, flags in sources.items():
        objects.append(str(directory / f"{source.stem}.o"))
        command = [COMPILER, *setup.COMMON, "-O2", *flags, "-c", str(source), "-o", objects[-1]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0 and not done.stderr, done.stderr
    program = directory / "standalone"
    subprocess.run([COMPILER, "-static", "-pthread", *objects, "-o", str(program)], check=True, timeout=100)
    return program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpu", "tables"),
    [
        ("max", ["neon_bf16", "neon_dot", "neon", "generic"]),
        ("neoverse-n1", ["neon_dot", "neon", "generic"]),
        ("cortex-a72", ["neon", "generic"]),
    ],
)
def test_every_table_of_a_processor_computes_what_plain_loops_do(program, cpu, tables):
    command = [EMULATOR, "-cpu", cpu, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines() == [f"{table} ok" for table in tables], done.stdout + done.stderr
    assert done.returncode == 0
