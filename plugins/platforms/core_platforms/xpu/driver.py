"""Probe of Intel's driver (Level Zero) through ctypes: device count and memory, without torch.

Owns: the driver calls of the probe. Never does: create a context. Called by: the manifest, in a helper process.
"""

from __future__ import annotations

import ctypes

from core.plugin.hookspecs import Device, Probe

LIBRARY = "libze_loader.so.1"
GPUS = 1
"""`ZE_INIT_FLAG_GPU_ONLY` of Level Zero."""
MEMORY_PROPERTIES = 7
"""`ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES` of Level Zero."""
MOST = 64
"""Maximum number of drivers, devices and memories that are listed."""


class _Memory(ctypes.Structure):
    """Level Zero's `ze_device_memory_properties_t`."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("clock_rate", ctypes.c_uint32),
        ("bus_width", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("name", ctypes.c_char * 256),
    )


def probe_driver() -> Probe:
    """Return the driver's devices, or the reason why there are none."""
    try:
        level_zero = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return Probe(unavailable=f"no Intel driver: {error}")
    status = level_zero.zeInit(GPUS)
    if status:
        return Probe(unavailable=f"the Intel driver does not start: error {status:#x}")
    devices: list[Device] = []
    for driver in _handles(level_zero.zeDriverGet):
        for device in _handles(level_zero.zeDeviceGet, driver):
            total = _memory(level_zero, device)
            devices.append(Device(f"xpu:{len(devices)}", "an Intel GPU", total, total))
    if not devices:
        return Probe(unavailable="the Intel driver knows no device")
    return Probe(tuple(devices))


def _handles(ask: ctypes._NamedFuncPointer, *of: ctypes.c_void_p) -> list[ctypes.c_void_p]:
    """Return the handles that a Level Zero function lists."""
    count = ctypes.c_uint32(MOST)
    found = (ctypes.c_void_p * MOST)()
    if ask(*of, ctypes.byref(count), found):
        return []
    return [ctypes.c_void_p(handle) for handle in found[: count.value]]


def _memory(level_zero: ctypes.CDLL, device: ctypes.c_void_p) -> int:
    """Return the bytes of memory of a device."""
    count = ctypes.c_uint32(MOST)
    found = (_Memory * MOST)()
    for memory in found:
        memory.type = MEMORY_PROPERTIES
    if level_zero.zeDeviceGetMemoryProperties(device, ctypes.byref(count), found):
        return 0
    return sum(memory.total for memory in found[: count.value])
