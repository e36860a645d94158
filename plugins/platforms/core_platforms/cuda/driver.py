"""Probe of NVIDIA's driver through ctypes: device count, names and memory, without torch.

Owns: the driver calls of the probe. Never does: create a context. Called by: the manifest, in a helper process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import msgspec

from core.plugin.hookspecs import Device, Probe
from core_platforms.cuda.chips import refusal
from core_platforms.cuda.management import Management

LIBRARY = "libcuda.so.1"
COMPUTE_MAJOR = 75
COMPUTE_MINOR = 76


def probe_driver() -> Probe:
    """Return the driver's devices, or the reason why there are none."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return Probe(unavailable=f"no NVIDIA driver: {error}")
    status = cuda.cuInit(0)
    if status:
        return Probe(unavailable=f"the NVIDIA driver does not start: {_name(cuda, status)}")
    count = ctypes.c_int()
    status = cuda.cuDeviceGetCount(ctypes.byref(count))
    if status:
        return Probe(unavailable=f"the NVIDIA driver does not count its devices: {_name(cuda, status)}")
    if count.value == 0:
        return Probe(unavailable="the NVIDIA driver knows no device")
    management = Management.open()
    try:
        devices = [_device(cuda, index, management) for index in range(count.value)]
    finally:
        if management is not None:
            management.close()
    return _served(devices)


def _served(devices: Sequence[Device]) -> Probe:
    """Leave out devices that no kernel can be compiled for, and say so."""
    served: list[Device] = []
    refused: list[str] = []
    for device in devices:
        reason = refusal(device.profile)
        if reason:
            refused.append(f"{device.name} ({device.description}) {reason}")
        else:
            served.append(device)
    if not served:
        return Probe(unavailable="; ".join(refused))
    if refused:
        described = "; ".join([served[0].description, *refused])
        served[0] = msgspec.structs.replace(served[0], description=described)
    return Probe(tuple(served))


def _device(cuda: ctypes.CDLL, index: int, management: Management | None) -> Device:
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
    return Device(f"cuda:{index}", about, available, total.value, profile=f"sm_{major}{minor}")


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
