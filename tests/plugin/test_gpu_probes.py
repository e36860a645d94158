"""What the platforms of GPUs find, over drivers that are not there."""

import ctypes
import uuid
from importlib.machinery import ModuleSpec

import pytest
import torch

from core.api.errors import UserError
from core.plugin.hookspecs import Device, Probe
from core.plugin.registry import PluginRegistry
from core_config.selection import select_platform
from core_config.stages.memory import human_bytes
from core_platforms.cuda import chips, manifest
from core_platforms.cuda.arguments import DeviceArguments
from core_platforms.cuda.platform import MAKERS, DevicePlatform
from core_platforms.rocm import manifest as rocm
from core_platforms.xpu import manifest as xpu

GIB = 1 << 30
NAMES = [uuid.UUID(int=7), uuid.UUID(int=8)]


def into(reference):
    """What `ctypes.byref` refers to."""
    return reference._obj


class Cuda:
    """`libcuda` with two devices."""

    def cuInit(self, flags):
        return 0

    def cuDriverGetVersion(self, version):
        into(version).value = 13000
        return 0

    def cuDeviceGetCount(self, count):
        into(count).value = 2
        return 0

    def cuDeviceGet(self, handle, index):
        into(handle).value = index
        return 0

    def cuDeviceGetName(self, name, size, handle):
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceTotalMem_v2(self, total, handle):
        into(total).value = 141 * GIB
        return 0

    def cuDeviceGetAttribute(self, value, number, handle):
        into(value).value = {20: 0, 75: 9, 76: 0}[number]
        return 0

    def cuDeviceGetUuid_v2(self, name, handle):
        name.raw = NAMES[handle.value].bytes
        return 0


class Nvml:
    """`libnvidia-ml`, which counts in another order, and knows the second device as a part of one."""

    shut = False

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, text, handle):
        known = {f"GPU-{NAMES[0]}".encode(): 1, f"MIG-{NAMES[1]}".encode(): 2}
        into(handle).value = known.get(text)
        return 0 if text in known else 6

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        into(memory).free = {1: 100 * GIB, 2: 9 * GIB}[handle.value]
        return 0

    def nvmlShutdown(self):
        Nvml.shut = True


@pytest.fixture
def drivers(monkeypatch):
    """Puts objects in the place of libraries."""

    def put(**libraries):
        def load(name):
            found = [library for word, library in libraries.items() if word in name]
            if not found:
                raise OSError(f"{name}: cannot open shared object file")
            return found[0]

        monkeypatch.setattr(ctypes, "CDLL", load)

    return put


def test_memory_that_others_hold_is_not_ours(drivers):
    drivers(cuda=Cuda(), nvidia=Nvml())
    first, second = manifest.core_probe().devices
    assert (first.name, first.memory_bytes, first.total_bytes) == ("cuda:0", 100 * GIB, 141 * GIB)
    assert (second.memory_bytes, second.profile, second.description) == (9 * GIB, "sm_90", "NVIDIA H200")
    assert Nvml.shut


def test_without_the_management_library_the_probe_says_so(drivers):
    drivers(cuda=Cuda())
    first, _ = manifest.core_probe().devices
    assert first.memory_bytes == 141 * GIB and "what others hold of it is unknown" in first.description


@pytest.mark.parametrize("platform, word", [(manifest, "NVIDIA"), (rocm, "AMD"), (xpu, "Intel")])
def test_without_a_driver(drivers, platform, word):
    drivers()
    probe = platform.core_probe()
    assert probe.devices == () and f"no {word} driver" in probe.unavailable


class Hip:
    def hipInit(self, flags):
        return 0

    def hipGetDeviceCount(self, count):
        into(count).value = 1
        return 0

    def hipDeviceGetName(self, name, size, index):
        name.value = b"AMD Instinct MI300X"

    def hipDeviceTotalMem(self, total, index):
        into(total).value = 192 * GIB


def test_the_runtime_that_comes_with_torch_serves_where_the_system_has_none(drivers, monkeypatch, tmp_path):
    library = tmp_path / "torch" / "lib" / "libamdhip64.so"
    library.parent.mkdir(parents=True)
    library.touch()
    found = ModuleSpec("torch", None, is_package=True)
    found.submodule_search_locations.append(str(tmp_path / "torch"))
    monkeypatch.setattr("core_platforms.rocm.driver.find_spec", lambda name: found)
    drivers(**{str(library): Hip()})
    assert [device.name for device in rocm.core_probe().devices] == ["rocm:0"]
    drivers()
    assert str(library) in rocm.core_probe().unavailable
    drivers(**{"libamdhip64.so.6": Hip()})
    assert [device.name for device in rocm.core_probe().devices] == ["rocm:0"]


class LevelZero:
    def zeInit(self, flags):
        return 0

    def zeDriverGet(self, count, found):
        into(count).value, found[0] = 1, 11
        return 0

    def zeDeviceGet(self, driver, count, found):
        assert driver.value == 11
        into(count).value, found[0] = 1, 22
        return 0

    def zeDeviceGetMemoryProperties(self, device, count, found):
        assert device.value == 22 and found[0].type == 7
        into(count).value, found[0].total = 1, 48 * GIB
        return 0


def test_devices_of_other_makers(drivers):
    drivers(amdhip=Hip(), ze_loader=LevelZero())
    (amd,) = rocm.core_probe().devices
    (intel,) = xpu.core_probe().devices
    assert (amd.name, amd.description, amd.memory_bytes) == ("rocm:0", "AMD Instinct MI300X", 192 * GIB)
    assert (intel.name, intel.memory_bytes) == ("xpu:0", 48 * GIB)
    for other in (rocm, xpu):
        assert "has not been run on a device" in other.core_spec().summary


class Turing(Cuda):
    """`libcuda` whose first devices, or all of them, are older than what kernels are compiled for."""

    def __init__(self, num_old):
        self.num_old = num_old

    def cuDeviceGetAttribute(self, value, number, handle):
        old = handle.value < self.num_old
        into(value).value = {20: 0, 75: 7 if old else 8, 76: 5 if old else 0}[number]
        return 0


def test_gpus_that_no_kernel_is_compiled_for_are_refused_with_the_reason(drivers):
    drivers(cuda=Turing(2), nvidia=Nvml())
    probe = manifest.core_probe()
    words = "has compute capability 7.5, and Triton compiles kernels for 8.0 (Ampere) and newer"
    assert probe.devices == ()
    assert probe.unavailable == f"cuda:0 (NVIDIA H200) {words}; cuda:1 (NVIDIA H200) {words}"
    drivers(cuda=Turing(1), nvidia=Nvml())
    probe = manifest.core_probe()
    (left,) = probe.devices
    assert (left.name, left.profile) == ("cuda:1", "sm_80") and not probe.unavailable
    assert left.description == f"NVIDIA H200; cuda:0 (NVIDIA H200) {words}"


@pytest.mark.parametrize("profile", ["sm_80", "sm_89", "sm_90", "sm_103", "sm_121", "", "sm_00"])
def test_other_gpus_are_not_refused(profile):
    assert chips.refusal(profile) == ""


class Unwell(Cuda):
    """`libcuda` that does not start, is old, knows no device, or knows one that no process may use."""

    def __init__(self, status=0, version=13000, count=1, mode=0):
        self.status, self.version, self.count, self.mode = status, version, count, mode

    def cuInit(self, flags):
        return self.status

    def cuGetErrorName(self, status, text):
        into(text).value = {100: b"CUDA_ERROR_NO_DEVICE", 803: b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}.get(status)
        return 0

    def cuDriverGetVersion(self, version):
        into(version).value = self.version
        return 0

    def cuDeviceGetCount(self, count):
        into(count).value = self.count
        return 0

    def cuDeviceGetAttribute(self, value, number, handle):
        into(value).value = {20: self.mode, 75: 9, 76: 0}[number]
        return 0


class Divided(Nvml):
    """`libnvidia-ml` of a machine whose two GPUs are in MIG mode."""

    def nvmlDeviceGetCount_v2(self, count):
        into(count).value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        into(handle).value = 1 + index
        return 0

    def nvmlDeviceGetMigMode(self, handle, mode, pending):
        into(mode).value = into(pending).value = 1
        return 0


@pytest.mark.parametrize(
    "cuda, nvml, failed, words",
    [
        (None, None, False, ["no NVIDIA driver: libcuda.so.1", "install it, or choose --device cpu"]),
        (Unwell(100), None, False, ["knows no device"]),
        (Unwell(803), None, True, ["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart the machine"]),
        (Unwell(999), None, True, ["does not start: error 999", "nvidia-smi says more"]),
        (
            Unwell(version=12040),
            None,
            True,
            ["it is for CUDA 12.4, and the installed torch for 13.0", "update the driver"],
        ),
        (Unwell(100), Divided(), True, ["2 GPUs are in MIG mode", "nvidia-smi mig", "CUDA_VISIBLE_DEVICES"]),
        (Unwell(count=0), Divided(), True, ["2 GPUs are in MIG mode"]),
        (
            Unwell(mode=2),
            Nvml(),
            True,
            ["cuda:0 (NVIDIA H200) is in compute mode 'prohibited'", "nvidia-smi -c DEFAULT"],
        ),
    ],
)
def test_a_device_that_cannot_be_used_is_told_in_a_sentence_with_a_way_out(
    drivers, monkeypatch, tmp_path, cuda, nvml, failed, words
):
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
    found = ModuleSpec("torch", None, is_package=True)
    found.submodule_search_locations.append(str(torch))
    monkeypatch.setattr("core_platforms.cuda.driver.find_spec", lambda name: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    drivers(**{name: library for name, library in (("cuda", cuda), ("nvidia", nvml)) if library is not None})
    probe = manifest.core_probe()
    assert probe.devices == () and probe.failed == failed
    assert all(word in probe.unavailable for word in words), probe.unavailable


def test_a_newer_driver_serves_an_older_torch_and_who_hides_devices_wants_none(drivers, monkeypatch):
    drivers(cuda=Unwell(version=13010), nvidia=Nvml())
    monkeypatch.setattr("core_platforms.cuda.driver.torch_cuda", lambda: "12.8")
    assert [device.name for device in manifest.core_probe().devices] == ["cuda:0"]
    drivers(cuda=Unwell(100), nvidia=Divided())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not manifest.core_probe().failed


def test_no_processor_computes_in_place_of_a_broken_gpu_unless_it_is_asked_for(tiny_llama):
    registry = PluginRegistry()
    for row in registry.rows("platform"):
        if row.name == "cuda":
            registry.take_answer(row, Probe(unavailable="the driver is too old; update it", failed=True))
    with pytest.raises(
        UserError, match=r"--device auto: cuda: the driver is too old; update it\. Or choose --device cpu"
    ):
        select_platform(registry, None)
    choice, _ = select_platform(registry, "cpu")
    assert choice.selection.chosen == ("cpu",)


@pytest.mark.parametrize(
    "error, words",
    [
        ("The NVIDIA driver on your system is too old (found version 11040).", ["too old", "update it"]),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nmore", ["another process", "nvidia-smi -c"]),
        ("CUDA error: no kernel image is available for execution", ["built for this GPU"]),
        ("No CUDA GPUs are available", ["CUDA_VISIBLE_DEVICES"]),
        ("CUDA out of memory. Tried to allocate 2.00 MiB.", ["too little memory", "--gpu-memory-utilization"]),
        ("CUDA error: an illegal state\nmore", ["torch cannot use it: CUDA error: an illegal state; nvidia-smi"]),
    ],
)
def test_a_device_that_torch_does_not_open_is_told_in_a_sentence_with_a_way_out(monkeypatch, error, words):
    def fail():
        raise RuntimeError(error)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", fail)
    with pytest.raises(UserError) as raised:
        DevicePlatform(MAKERS["cuda"], DeviceArguments()).open("cuda:0", [])
    said = str(raised.value)
    assert said.startswith("device 'cuda:0': ") and "\n" not in said and all(word in said for word in words), said


def test_a_torch_without_the_vendor_and_a_number_without_device(monkeypatch):
    platform = DevicePlatform(MAKERS["cuda"], DeviceArguments())
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UserError, match="has no CUDA; install one that has"):
        platform.open("cuda:0", [])
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="torch sees 1 of them; choose cuda:0 to 0"):
        platform.open("cuda:1", [])


def test_the_cache_leaves_room_for_what_a_gpu_needs_beside_it():
    from core_config.rules import memory
    from core_config.rules.rule import Facts

    class Settings(dict):
        def user_set(self, name):
            return False

    settings = Settings(
        num_gpu_blocks_override=None, kv_cache_memory_bytes=None, gpu_memory_utilization=0.9, platform_config={}
    )
    facts = Facts(settings, platform=manifest.core_spec(), weights_bytes=16 * GIB, workspace_bytes=2 * GIB)
    for free, room in ((141, 0.9 * 141 - 19), (60, 41), (10, 0)):
        facts.device = Device("cuda:0", "", free * GIB, 141 * GIB)
        (found,) = memory.bytes_come_from_a_share(facts)
        assert found.value == pytest.approx(room * GIB, rel=1e-6)
        assert "2.0 GiB of buffers and 1.0 GiB for the driver and recorded graphs" in found.reason
    assert human_bytes(GIB) == "1.0 GiB"
