"""NVML, NVIDIA's management library, through ctypes: what is free of a device's memory, whoever holds the rest.

Owns: the few calls of it. Never does: create a context, which would take memory itself. Called by: the probe.

The driver counts devices by its own list (`CUDA_VISIBLE_DEVICES`), NVML counts all: both know a device by its UUID.
"""

from __future__ import annotations

import ctypes
import uuid

LIBRARY = "libnvidia-ml.so.1"
PREFIXES = ("GPU", "MIG")
"""Of the name of a whole device, and of a part of one."""


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`: bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Management:
    """The library, started. library: its functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @classmethod
    def open(cls) -> Management | None:
        """Start the library; None where there is none or it does not start."""
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError:  # containers often have the driver without it; the probe says so in the device's description
            return None
        if library.nvmlInit_v2():
            return None
        return cls(library)

    def free_bytes(self, name: bytes) -> int | None:
        """Free bytes of the device with this UUID (16 bytes); None where NVML does not know it."""
        handle = self._handle(str(uuid.UUID(bytes=name)))
        if handle is None:
            return None
        memory = _Memory()
        if self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
        return int(memory.free)

    def close(self) -> None:
        """Stop the library."""
        self._library.nvmlShutdown()

    def _handle(self, name: str) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        for prefix in PREFIXES:
            text = f"{prefix}-{name}".encode()
            if self._library.nvmlDeviceGetHandleByUUID(text, ctypes.byref(handle)) == 0:
                return handle
        return None
