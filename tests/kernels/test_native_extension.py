"""The extension as a guest in a process: threads, forks, exits, instruction sets, and life without a compiler."""

import platform
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from core.api.errors import PluginError
from core.api.reason import Reason
from core_platforms.cpu import extension
from core_platforms.cpu import kernels as binding
from core_runtime.weights.formats import Dense

ROOT = Path(__file__).resolve().parents[2] / "plugins/platforms"
NATIVE = Path("core_platforms/cpu/native")


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_best_instruction_set_is_active_and_others_can_be_chosen(native):
    assert native.isas()[-1] == "generic"
    assert native.isa() == native.isas()[0]
    with pytest.raises(ValueError, match="'avx9000' does not run here"):
        native.set_isa("avx9000")


def test_numerics_name_the_instruction_set(kernels, isa):
    assert binding.NativeKernels(2).numerics.endswith(f":{isa}")


def test_interpreter_exits_with_sleeping_and_spinning_threads(native):
    code = "from core_platforms.cpu import _native as n; import time; n.pool_init(4); time.sleep({})"
    for pause in (0, 0.05):
        run_python(code.format(pause))


def test_a_forked_child_computes_alone_and_may_start_its_own_threads(native):
    run_python(
        "import os, torch\n"
        "from core_runtime.weights.formats import Dense\n"
        "from core_platforms.cpu.kernels import NativeKernels\n"
        "torch.set_num_threads(1)\n"  # its OpenMP threads do not survive a fork
        "kernels = NativeKernels(2)\n"
        "linear = kernels.linear(Dense(torch.ones(640, 64)), activation='none')\n"
        "x, out = torch.ones(200, 64), torch.empty(200, 640)\n"
        "linear(x, out)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    out.zero_(); linear(x, out); assert (out == 64).all()\n"
        "    assert kernels._native.pool_size() == 1 and kernels._native.pool_init(2) == 2\n"
        "    out.zero_(); linear(x, out); os._exit(0 if (out == 64).all() else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "linear(x, out)\n"
    )


def test_several_python_threads_share_the_pool(kernels):
    linear = kernels.linear(Dense(torch.randn(320, 256)), activation="none")
    x = torch.randn(120, 256)
    want = torch.empty(120, 320)
    linear(x, want)
    wrong = []

    def work():
        out = torch.empty(120, 320)
        for _ in range(50):
            linear(x, out)
            if not torch.equal(out, want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_idle_threads_sleep(native):
    native.pool_init(2)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


def test_packed_memory_is_given_back(kernels):
    def mapped():
        return sum("rw-p 00000000 00:00 0" in line for line in Path("/proc/self/maps").read_text().splitlines())

    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    before = mapped()
    for _ in range(40):
        kernels.linear(Dense(torch.zeros(4096, 1024)), activation="none")  # 16 MB each
    assert mapped() < before + 20


def test_without_the_extension_there_is_a_reason(monkeypatch, tmp_path):
    log = tmp_path / "native_build_error.txt"
    log.write_text("g++: command not found")
    monkeypatch.setattr(extension, "ERROR_FILE", log)
    monkeypatch.setitem(sys.modules, "core_platforms.cpu._native", None)
    monkeypatch.delattr("core_platforms.cpu._native", raising=False)
    reason = extension.kernels_or_reason()
    assert isinstance(reason, Reason) and "failed build" in reason.actual and "build-kernels" in reason.hint
    with pytest.raises(PluginError, match="cpu_native"):
        binding.NativeKernels(1)


def test_an_extension_of_another_processor_is_refused_with_what_it_was_compiled_for(native, tmp_path):
    """An environment that was copied from another machine: torch computes, and nothing crashes."""
    made = {path.stem: str(path) for path in OBJECTS if not path.stem.startswith("kernels_")}
    if "module" not in made:
        pytest.skip("needs the object files of a build in place")
    del made["dispatch"]
    other = "neon" if platform.machine() == "x86_64" else "avx2"
    foreign = tmp_path / "foreign.cpp"
    table = f'extern "C" const KernelTable core_kernels_{other} = {{"{other}"}};'
    foreign.write_text(f'#include "native.h"\n{table}\n#include "dispatch.cpp"\n')
    library = tmp_path / "_native.abi3.so"
    options = ["-std=c++17", "-fPIC", "-w", f"-DCORE_HAVE_{other.upper()}", "-I", str(ROOT / NATIVE)]
    tool("g++", *options, "-shared", "-pthread", str(foreign), *made.values(), "-o", str(library))
    code = (
        "import importlib.util, sys, core_platforms.cpu as package\n"
        f"package.__path__.insert(0, {str(tmp_path)!r})\n"
        "from core_platforms.cpu.extension import kernels_or_reason, numerics\n"
        "print(kernels_or_reason(), numerics('cpu-native', {}))\n"
    )
    said = run_python(code)
    assert f"compiled for ['{other}'] alone, which this processor does not run" in said
    assert "`core build-kernels` compiles it" in said and said.rstrip().endswith("None")


OBJECTS = [
    path
    for path in sorted((ROOT / "build").glob("native.*/**/core_platforms/cpu/native/*.o"))
    if path.stem.startswith("kernels_") == path.parents[3].name.startswith("part")  # older builds left whole ones
]
STEMS = sorted({path.stem for path in OBJECTS})
FEATURES = {  # of the instructions of an object file, without what x86-64 always has
    "avx": r"\bv[a-z0-9]+\s|%ymm",
    "avx512": r"%zmm|%k[0-7]\b|%[xy]mm(1[6-9]|2\d|3[01])\b",
    "vnni": r"\bvpdp",
    "tiles": r"\b(ldtilecfg|sttilecfg|tile(loadd|loaddt1|stored|zero|release)|tdp\w+)\b",
    "bf16": r"\bvdpbf16|\bvcvtne2?ps2?bf16|\bvcvtneps2bf16",
    "sse3 and later": r"\b(pshufb|phadd\w*|pmulld|pmaddubsw|pabs\w+|ptest|round[sp][sd]|blend\w+|pmovzx\w+|pmovsx\w+|"
    r"pminsd|pmaxsd|pack[us]+dw|haddp[sd]|movs[hl]dup|lddqu|pextr[bdq]|pinsr[bdq]|dpps|crc32\w*|popcnt)\b",
    "bit manipulation": r"\b(lzcnt|andn|bextr|bls[ir]\w*|mulx|pdep|pext|rorx|sarx|shlx|shrx|movbe)\b",
}
ALLOWED = {
    "kernels_avx2": {"avx"},
    "kernels_avx512": {"avx", "avx512"},
    "kernels_avx512_vnni": {"avx", "avx512", "vnni"},
    "kernels_avx512_vnni_bf16": {"avx", "avx512", "vnni", "bf16"},
    "kernels_amx": {"avx", "avx512", "vnni", "bf16", "tiles"},
}


def tool(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"needs {command[0]}")


def test_the_extension_exports_its_entry_point_alone(native):
    exported = tool("nm", "-DC", "--defined-only", native.__file__)
    assert exported.split()[2:] == ["PyInit__native"]


NEEDED = {
    "x86_64": {
        "avx2": {"avx2", "fma", "f16c"},
        "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
        "avx512_vnni": {"avx512_vnni"},
        "avx512_vnni_bf16": {"avx512_bf16"},
        "amx": {"amx_tile", "amx_int8", "amx_bf16"},
    },
    "aarch64": {"neon": {"asimd"}, "neon_dot": {"asimddp"}, "neon_bf16": {"i8mm", "bf16"}},
}
"""The processor's features that an instruction set needs, by machine type, as Linux names them."""


def test_the_tests_have_the_best_and_the_plainest_instruction_sets_of_this_processor(native):
    """An installation has the best set of its machine alone; others, and so their tests, would be missing unnoticed."""
    text = Path("/proc/cpuinfo").read_text()
    features = set(re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE)[1].split())
    needed = NEEDED.get(platform.machine(), {})
    runnable = [name for name, names in needed.items() if names <= features]
    expected = {"generic", *runnable[:1], *runnable[-1:]}
    assert expected <= set(native.compiled_isas()), (
        "CORE_NATIVE=few .venv/bin/python plugins/platforms/setup.py build_ext --inplace"
    )


def test_every_source_has_its_object_file(native):
    if not OBJECTS:
        pytest.skip("needs the object files of a build in place")
    sources = {path.stem for path in (ROOT / NATIVE).glob("*.cpp")}
    compiled = {f"kernels_{name}" for name in native.compiled_isas()}
    needed = {name for name in sources if not name.startswith("kernels_") or name in compiled}
    assert {path.stem for path in OBJECTS} >= needed


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86-64 instructions")
@pytest.mark.parametrize("stem", STEMS)
def test_no_object_file_needs_more_than_its_name_says(native, stem):
    """The whole extension is loaded on every processor: only a dispatched table may hold what some of them lack."""
    parts = [str(path) for path in OBJECTS if path.stem == stem]
    code = "\n".join(
        line.split("\t", 1)[1]
        for line in tool("objdump", "-d", "--no-show-raw-insn", *parts).splitlines()
        if "\t" in line
    )
    found = {name for name, pattern in FEATURES.items() if re.search(pattern, code)}
    if stem in ALLOWED:  # a set that its own file does not use would be a check that finds nothing
        assert found - {"sse3 and later"} == ALLOWED[stem]
    else:
        assert not found and "ret" in code


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.stem)
def test_no_object_file_shares_a_function_with_another(native, path):
    """Of a weak function the linker keeps one copy, maybe that of the highest instruction set."""
    assert not re.findall(r"^[0-9a-f]+ [WVu] .*$", tool("nm", "--defined-only", str(path)), re.MULTILINE)
