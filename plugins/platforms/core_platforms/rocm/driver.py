"""Probe of AMD's driver through ctypes: device count, names and memory, without importing torch.

Owns: the driver calls of the probe. Never does: create a context. Called by: the manifest, in a helper process.
"""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

from core.plugin.hookspecs import Device, Probe

LIBRARIES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so")
"""Names of AMD's runtime. The last one is a link for compilers, which a system without ROCm's headers lacks."""


def probe_driver() -> Probe:
    """Return the driver's devices, or the reason why there are none."""
    hip = _library()
    if isinstance(hip, str):
        return Probe(unavailable=f"no AMD driver: {hip}")
    status = hip.hipInit(0)
    if status:
        return Probe(unavailable=f"the AMD driver does not start: error {status}")
    count = ctypes.c_int()
    if hip.hipGetDeviceCount(ctypes.byref(count)) or count.value == 0:
        return Probe(unavailable="the AMD driver knows no device")
    devices = [_device(hip, index) for index in range(count.value)]
    return Probe(tuple(devices))


def _library() -> ctypes.CDLL | str:
    """Load AMD's runtime: the system's, or else the one that comes with torch. Returns what is wrong if there is none."""
    torch = find_spec("torch")
    folders = [] if torch is None else [Path(place, "lib") for place in torch.submodule_search_locations or ()]
    carried = [str(path) for folder in folders for path in sorted(folder.glob("libamdhip64.so*"))]
    problems: list[str] = []
    for name in (*LIBRARIES, *carried):
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            problems.append(str(error))
    # A library that comes with torch and cannot be loaded says more than a name that the system does not know.
    return problems[-1]


def _device(hip: ctypes.CDLL, index: int) -> Device:
    name = ctypes.create_string_buffer(256)
    hip.hipDeviceGetName(name, len(name), index)
    total = ctypes.c_size_t()
    hip.hipDeviceTotalMem(ctypes.byref(total), index)
    shown = name.value.decode(errors="replace")
    return Device(f"rocm:{index}", shown, total.value, total.value)
