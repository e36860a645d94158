"""NVML, NVIDIA's management library, through ctypes: free memory of a device, whatever process uses it, and MIG mode.

Owns: the NVML calls. Never does: create a context, which would take memory itself. Called by: the probe.

The driver numbers only the devices in `CUDA_VISIBLE_DEVICES`, NVML numbers all of them, so devices are matched by UUID.
"""

from __future__ import annotations

import ctypes
import uuid

LIBRARY = "libnvidia-ml.so.1"
PREFIXES = ("GPU", "MIG")
"""UUID prefixes of a whole device and of a MIG slice."""


class _Memory(ctypes.Structure):
    """NVML's `nvmlMemory_t`; sizes in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Management:
    """An initialized NVML. library: its functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @classmethod
    def open(cls) -> Management | None:
        """Initialize NVML; None where it is missing or fails to start."""
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError:  # containers often have the driver without NVML; the probe says so in the device's description
            return None
        if library.nvmlInit_v2():
            return None
        return cls(library)

    def free_bytes(self, name: bytes) -> int | None:
        """Return the free bytes of the device with this UUID (16 bytes); None where NVML does not know it."""
        handle = self._handle(str(uuid.UUID(bytes=name)))
        if handle is None:
            return None
        memory = _Memory()
        if self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
        return int(memory.free)

    def count_divided(self) -> int:
        """Return how many devices are in MIG mode, in which only slices of them compute."""
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return 0
        divided = 0
        for index in range(count.value):
            handle = ctypes.c_void_p()
            mode, pending = ctypes.c_uint(), ctypes.c_uint()
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                continue
            if not self._library.nvmlDeviceGetMigMode(handle, ctypes.byref(mode), ctypes.byref(pending)):
                divided += mode.value
        return divided

    def close(self) -> None:
        """Shut NVML down."""
        self._library.nvmlShutdown()

    def _handle(self, name: str) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        for prefix in PREFIXES:
            text = f"{prefix}-{name}".encode()
            if self._library.nvmlDeviceGetHandleByUUID(text, ctypes.byref(handle)) == 0:
                return handle
        return None
