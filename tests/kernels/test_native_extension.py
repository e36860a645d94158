"""The extension as a guest in a process: threads, forks, exits, instruction sets, and life without a compiler."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from core.api.errors import PluginError
from core.api.reason import Reason
from core.weights.formats import Dense
from plugins.platforms.cpu import extension
from plugins.platforms.cpu import kernels as binding

ROOT = Path(__file__).resolve().parents[2]


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
    code = "from plugins.platforms.cpu import _native as n; import time; n.pool_init(4); time.sleep({})"
    for pause in (0, 0.05):
        run_python(code.format(pause))


def test_a_forked_child_computes_alone_and_may_start_its_own_threads(native):
    run_python(
        "import os, torch\n"
        "from core.weights.formats import Dense\n"
        "from plugins.platforms.cpu.kernels import NativeKernels\n"
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
    monkeypatch.setitem(sys.modules, "plugins.platforms.cpu._native", None)
    monkeypatch.delattr("plugins.platforms.cpu._native", raising=False)
    reason = extension.kernels_or_reason()
    assert isinstance(reason, Reason) and "failed build" in reason.actual and "build-kernels" in reason.hint
    with pytest.raises(PluginError, match="cpu_native"):
        binding.NativeKernels(1)


def test_only_their_own_files_use_wide_registers(native):
    """No function outside the AVX files may need more than the baseline: the linker keeps one copy of a shared one."""
    try:
        text = subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", native.__file__], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs objdump")
    exported = subprocess.run(
        ["nm", "-DC", "--defined-only", native.__file__], capture_output=True, text=True, check=True
    )
    assert exported.stdout.split()[2:] == ["PyInit__native"]
    assert "zmm" in text or native.isas() == ["generic"]


@pytest.mark.parametrize("source", ["kernels_generic", "ops", "pool", "pack", "dispatch", "module"])
def test_baseline_objects_use_no_wide_registers(native, source):
    objects = list((ROOT / "build").glob(f"temp.*/**/{source}.o"))
    if not objects:
        pytest.skip("needs the object files of a build in place")
    text = subprocess.run(["objdump", "-d", str(objects[0])], capture_output=True, text=True, check=True).stdout
    assert "%xmm" in text or source != "kernels_generic"
    assert "%ymm" not in text and "%zmm" not in text
