"""Probe of AMD's driver through ctypes: device count, names and memory, without torch.

Owns: the driver calls of the probe. Never does: create a context. Called by: the manifest, in a helper process.
"""

from __future__ import annotations

import ctypes

from core.plugin.hookspecs import Device, Probe

LIBRARY = "libamdhip64.so"


def probe_driver() -> Probe:
    """Return the driver's devices, or the reason why there are none."""
    try:
        hip = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return Probe(unavailable=f"no AMD driver: {error}")
    status = hip.hipInit(0)
    if status:
        return Probe(unavailable=f"the AMD driver does not start: error {status}")
    count = ctypes.c_int()
    if hip.hipGetDeviceCount(ctypes.byref(count)) or count.value == 0:
        return Probe(unavailable="the AMD driver knows no device")
    devices = [_device(hip, index) for index in range(count.value)]
    return Probe(tuple(devices))


def _device(hip: ctypes.CDLL, index: int) -> Device:
    name = ctypes.create_string_buffer(256)
    hip.hipDeviceGetName(name, len(name), index)
    total = ctypes.c_size_t()
    hip.hipDeviceTotalMem(ctypes.byref(total), index)
    shown = name.value.decode(errors="replace")
    return Device(f"rocm:{index}", shown, total.value, total.value)
