"""What the platforms of GPUs find, over drivers that are not there."""

import ctypes
import uuid
from importlib.machinery import ModuleSpec

import pytest

from core.plugin.hookspecs import Device
from core_config.stages.memory import human_bytes
from core_platforms.cuda import chips, manifest
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
        into(value).value = {75: 9, 76: 0}[number]
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
        into(value).value = {75: 7 if old else 8, 76: 5 if old else 0}[number]
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
