"""Probe of NVIDIA's driver through ctypes: device count, names and memory, without torch.

Owns: the driver calls of the probe. Never does: create a context. Called by: the manifest, in a helper process.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from core.plugin.hookspecs import Device, Probe
from core_platforms.cuda.chips import refusal
from core_platforms.cuda.management import Management

LIBRARY = "libcuda.so.1"
COMPUTE_MODE = 20
COMPUTE_MAJOR = 75
COMPUTE_MINOR = 76
PROHIBITED = 2
"""Compute mode in which no process may use the device."""
NO_DEVICE = (34, 100)
"""Status codes of a machine without devices: `CUDA_ERROR_STUB_LIBRARY` and `CUDA_ERROR_NO_DEVICE`."""
WAYS_OUT = {
    802: "start nvidia-fabricmanager, which GPUs with NVLink switches wait for",
    803: "restart the machine, since the driver was updated while it ran",
    804: "remove the compatibility package of CUDA, which this GPU does not support",
}
"""Status code of `cuInit` → what mends it."""
OTHERWISE = "nvidia-smi says more about it"


def probe_driver() -> Probe:
    """Return the driver's devices, or the reason why there are none."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return Probe(unavailable=f"no NVIDIA driver: {error}; install it, or choose --device cpu")
    status = cuda.cuInit(0)
    if status in NO_DEVICE:
        return _no_device()
    if status:
        way_out = WAYS_OUT.get(status, OTHERWISE)
        return Probe(unavailable=f"the NVIDIA driver does not start: {_name(cuda, status)}; {way_out}", failed=True)
    old = _too_old(cuda)
    if old:
        return Probe(unavailable=old, failed=True)
    count = ctypes.c_int()
    status = cuda.cuDeviceGetCount(ctypes.byref(count))
    if status:
        why = f"the NVIDIA driver does not count its devices: {_name(cuda, status)}; {OTHERWISE}"
        return Probe(unavailable=why, failed=True)
    if count.value == 0:
        return _no_device()
    management = Management.open()
    try:
        devices = [_device(cuda, index, management) for index in range(count.value)]
    finally:
        if management is not None:
            management.close()
    return _served(devices)


def _no_device() -> Probe:
    """Return the answer without a device, which says so where all GPUs are to be used in slices."""
    management = Management.open()
    if management is None:
        return Probe(unavailable="the NVIDIA driver knows no device")
    try:
        num_divided = management.count_divided()
    finally:
        management.close()
    if not num_divided:
        return Probe(unavailable="the NVIDIA driver knows no device")
    return Probe(
        unavailable=f"{num_divided} GPUs are in MIG mode, and no slice of them can be used here; create one (nvidia-smi mig "
        "-cgi PROFILE -C), or name one in CUDA_VISIBLE_DEVICES",
        failed="CUDA_VISIBLE_DEVICES" not in os.environ,
    )


def _too_old(cuda: ctypes.CDLL) -> str:
    """Return a sentence where the driver is older than the CUDA of the installed torch; empty where it is not."""
    version = ctypes.c_int()
    needed = torch_cuda()
    if needed is None or cuda.cuDriverGetVersion(ctypes.byref(version)):
        return ""
    major, minor = version.value // 1000, version.value % 1000 // 10
    if major >= int(needed.partition(".")[0]):
        return ""
    return (
        f"the NVIDIA driver is too old: it is for CUDA {major}.{minor}, and the installed torch for {needed}; update the "
        f"driver, or install a torch for CUDA {major}"
    )


def torch_cuda() -> str | None:
    """Return the CUDA version that the installed torch is built for, read from its file; None without CUDA or torch."""
    found = find_spec("torch")
    for folder in () if found is None else found.submodule_search_locations or ():
        match = re.search(r"^cuda\b[^=]*= *'([0-9.]+)'", Path(folder, "version.py").read_text(), re.MULTILINE)
        if match:
            return match[1]
    return None


def _served(devices: Sequence[tuple[Device, str]]) -> Probe:
    """Leave out devices that cannot be used, and say so. devices: each with the reason against it."""
    served: list[Device] = []
    refused: list[str] = []
    for device, reason in devices:
        if reason:
            refused.append(f"{device.name} ({device.description}) {reason}")
        else:
            served.append(device)
    if not served:
        return Probe(unavailable="; ".join(refused), failed=True)
    if refused:
        described = "; ".join([served[0].description, *refused])
        served[0] = msgspec.structs.replace(served[0], description=described)
    return Probe(tuple(served))


def _device(cuda: ctypes.CDLL, index: int, management: Management | None) -> tuple[Device, str]:
    """Return a device, and the reason against it."""
    handle = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), handle)
    total = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
    major = _attribute(cuda, handle, COMPUTE_MAJOR)
    minor = _attribute(cuda, handle, COMPUTE_MINOR)
    shown = name.value.decode(errors="replace")
    free = None if management is None else management.free_bytes(_uuid(cuda, handle))
    if free is None:
        about = f"{shown}, what others hold of it is unknown: NVML does not answer"
        free = total.value
    else:
        about = shown
    available = min(free, total.value)
    device = Device(f"cuda:{index}", about, available, total.value, profile=f"sm_{major}{minor}")
    reason = refusal(device.profile)
    if not reason and _attribute(cuda, handle, COMPUTE_MODE) == PROHIBITED:
        reason = "is in compute mode 'prohibited'; allow its use with nvidia-smi -c DEFAULT"
    return device, reason


def _uuid(cuda: ctypes.CDLL, handle: ctypes.c_int) -> bytes:
    """Return the 16 bytes that identify the device, or its MIG slice, in every list of devices."""
    uuid = ctypes.create_string_buffer(16)
    ask = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    ask(uuid, handle)
    return uuid.raw


def _attribute(cuda: ctypes.CDLL, handle: ctypes.c_int, number: int) -> int:
    """Return one of the device's attributes (`CUdevice_attribute`)."""
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
    return value.value


def _name(cuda: ctypes.CDLL, status: int) -> str:
    """Return the name of a status code, such as `CUDA_ERROR_NO_DEVICE`."""
    text = ctypes.c_char_p()
    if cuda.cuGetErrorName(status, ctypes.byref(text)) or text.value is None:
        return f"error {status}"
    return text.value.decode()
