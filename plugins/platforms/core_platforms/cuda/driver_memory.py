"""Address ranges and physical memory of an NVIDIA device, through the driver's virtual-memory functions.

Owns: the driver calls. Never does: track reservations (`virtual_memory` does). Called by: the platform.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import torch
from torch import Tensor

from core.api.errors import UserError
from core_platforms.cuda.driver import LIBRARY

PINNED = 1
"""`CU_MEM_ALLOCATION_TYPE_PINNED`: the only kind a device supports."""
ON_DEVICE = 1
"""`CU_MEM_LOCATION_TYPE_DEVICE` of the driver API."""
READ_AND_WRITE = 3
"""`CU_MEM_ACCESS_FLAGS_PROT_READWRITE` of the driver API."""
OUT_OF_MEMORY = 2
"""`CUDA_ERROR_OUT_OF_MEMORY`, which becomes MemoryError."""


class _Location(ctypes.Structure):
    """The driver's `CUmemLocation`."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Flags(ctypes.Structure):
    """The last member of the driver's `CUmemAllocationProp`."""

    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("direct", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Kind(ctypes.Structure):
    """The driver's `CUmemAllocationProp`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    """The driver's `CUmemAccessDesc`."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class DriverMemory:
    """The `AddressSpace` of a device that torch has opened in this thread.

    Raises OSError without the driver, and UserError where the device does not support virtual memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = ctypes.CDLL(LIBRARY)
        self._device = device
        self._location = _Location(ON_DEVICE, device.index or 0)
        self._kind = _Kind(type=PINNED, location=self._location)
        unit = ctypes.c_size_t()
        self._check("cuMemGetAllocationGranularity", ctypes.byref(unit), ctypes.byref(self._kind), 0)
        self.granularity = unit.value

    def reserve(self, nbytes: int) -> int:
        """Reserve addresses without memory; returns the first."""
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(nbytes)
        nothing = ctypes.c_uint64(0)
        self._check("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), nothing, nothing)
        return address.value

    def fill(self, address: int, nbytes: int) -> int:
        """Back a reserved span with memory and return its handle. Raises MemoryError when there is not enough."""
        handle = ctypes.c_uint64()
        size = ctypes.c_size_t(nbytes)
        nothing = ctypes.c_uint64(0)
        self._check("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(self._kind), nothing)
        place = ctypes.c_uint64(address)
        access = _Access(self._location, READ_AND_WRITE)
        with contextlib.ExitStack() as undo:
            undo.callback(self._cuda.cuMemRelease, handle)
            self._check("cuMemMap", place, size, ctypes.c_size_t(0), handle, nothing)
            # Memory that is released while it is mapped stays taken, and so do the addresses.
            undo.callback(self._cuda.cuMemUnmap, place, size)
            self._check("cuMemSetAccess", place, size, ctypes.byref(access), ctypes.c_size_t(1))
            undo.pop_all()
        return handle.value

    def empty(self, address: int, nbytes: int, handle: int) -> None:
        """Unmap a span and release its memory."""
        self._check("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(nbytes))
        self._check("cuMemRelease", ctypes.c_uint64(handle))

    def forget(self, address: int, nbytes: int) -> None:
        """Free reserved addresses."""
        self._check("cuMemAddressFree", ctypes.c_uint64(address), ctypes.c_size_t(nbytes))

    def tensor(self, address: int, nbytes: int) -> Tensor:
        """Return uint8 [nbytes] at an address."""
        storage = torch._C._construct_storage_from_data_pointer(address, self._device, nbytes)
        empty = torch.empty(0, dtype=torch.uint8, device=self._device)
        return empty.set_(storage, 0, (nbytes,))

    def _check(self, name: str, *arguments: Any) -> None:
        """Call a driver function. Raises MemoryError or UserError for a failing status."""
        status = getattr(self._cuda, name)(*arguments)
        if status == OUT_OF_MEMORY:
            raise MemoryError(f"{name}: the device has not enough free memory")
        if status:
            raise UserError(
                f"{name} answers error {status}: the driver cannot give memory back and take it again here; give "
                "--platform-config.virtual-memory false."
            )
