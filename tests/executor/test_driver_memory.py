"""The driver's virtual memory, over a driver made up in Python that knows what is mapped."""

import ctypes

import pytest
import torch

from core.api.errors import UserError
from core_platforms.cuda.driver_memory import DriverMemory
from core_platforms.cuda.virtual_memory import TaggedMemory

MIB = 1 << 20
FIRST = 1 << 40
"""The first address that the driver reserves."""


class Driver:
    """`libcuda` with the calls for virtual memory. failing: (name of a call, status), which then does nothing."""

    def __init__(self) -> None:
        self.failing = ("", 0)
        self.reserved: dict[int, int] = {}
        self.created: set[int] = set()
        self.mapped: dict[int, int] = {}

    def __getattribute__(self, name):
        if name.startswith("cu") and name == self.failing[0]:
            return lambda *arguments: self.failing[1]
        return super().__getattribute__(name)

    def cuMemGetAllocationGranularity(self, unit, kind, option):
        unit._obj.value = 2 * MIB
        return 0

    def cuMemAddressReserve(self, address, size, alignment, wanted, flags):
        address._obj.value = FIRST + len(self.reserved) * (1 << 30)
        self.reserved[address._obj.value] = size.value
        return 0

    def cuMemAddressFree(self, address, size):
        if address.value in self.mapped or self.reserved.get(address.value) != size.value:
            return 1
        del self.reserved[address.value]
        return 0

    def cuMemCreate(self, handle, size, kind, flags):
        handle._obj.value = 1 + max(self.created, default=0)
        self.created.add(handle._obj.value)
        return 0

    def cuMemRelease(self, handle):
        if handle.value in self.mapped.values():
            return 1
        self.created.remove(handle.value)
        return 0

    def cuMemMap(self, address, size, offset, handle, flags):
        self.mapped[address.value] = handle.value
        return 0

    def cuMemSetAccess(self, address, size, access, count):
        return 0

    def cuMemUnmap(self, address, size):
        del self.mapped[address.value]
        return 0


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
@pytest.mark.parametrize(("status", "error"), [(2, MemoryError), (801, UserError)])
def test_an_allocation_that_the_driver_refuses_leaves_nothing(monkeypatch, call, status, error) -> None:
    driver = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    memory = TaggedMemory(DriverMemory(torch.device("cuda", 0)), lambda: None)
    driver.failing = (call, status)
    with pytest.raises(error, match=call):
        memory.allocate(3 * MIB, "kv")
    assert (driver.reserved, driver.created, driver.mapped) == ({}, set(), {})
