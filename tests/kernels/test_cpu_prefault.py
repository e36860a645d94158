"""Memory of the KV cache taken in idle time."""

import ctypes
import mmap
import sys
import time
from pathlib import Path

import pytest

from core_platforms.cpu.extension import kernels_or_reason
from core_platforms.cpu.runtime import CpuPlatform

MIB = 1 << 20
PAGE = mmap.PAGESIZE

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(kernels_or_reason(), "prefault"), reason="native kernels on Linux"
)


def resident(buffer):
    """Bytes of a buffer that are in memory."""
    pages = -(-buffer.numel() // PAGE)
    there = (ctypes.c_ubyte * pages)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(buffer.data_ptr()), ctypes.c_size_t(buffer.numel()), there) == 0
    return sum(page & 1 for page in there) * PAGE


def wait_for_pages(buffers, nbytes):
    deadline = time.monotonic() + 60
    while sum(map(resident, buffers)) < nbytes and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.fixture
def runtime(request):
    opened = CpuPlatform(1, prefault_bytes=request.param).open("cpu", [])
    yield opened
    opened.close()


@pytest.mark.parametrize("runtime", [40 * MIB], indirect=True)
def test_pages_are_taken_in_idle_time_up_to_the_limit(runtime):
    first, second, third = (runtime.allocate(30 * MIB) for _ in range(3))
    first[:100] = 7  # what is written meanwhile stays
    wait_for_pages([first, second], 40 * MIB)
    assert resident(first) == 30 * MIB
    assert 10 * MIB <= resident(second) <= 13 * MIB  # whole huge pages
    assert resident(third) <= 2 * MIB
    assert first[:100].eq(7).all() and not first[100:].any() and not second.any()


@pytest.mark.parametrize("runtime", [0], indirect=True)
def test_no_page_is_taken_without_a_limit(runtime):
    buffer = runtime.allocate(8 * MIB)
    time.sleep(0.05)
    assert resident(buffer) <= 2 * MIB  # a huge page may begin in the memory beside it


@pytest.mark.parametrize("runtime", [0], indirect=True)
def test_the_first_tokens_of_a_cache_do_not_wait_for_huge_pages(runtime):
    if "[always]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("the system gives huge pages unasked")
    buffer = runtime.allocate(64 * MIB)
    buffer[:100] = 7
    assert resident(buffer) < 2 * MIB


@pytest.mark.parametrize("runtime", [2048 * MIB], indirect=True)
def test_closing_ends_it_at_once_and_another_runtime_goes_on(runtime):
    whole = runtime.allocate(2048 * MIB)
    runtime.close()
    taken = resident(whole)
    time.sleep(0.05)
    assert resident(whole) == taken < 2048 * MIB
    following = CpuPlatform(1, prefault_bytes=8 * MIB).open("cpu", [])
    buffer = following.allocate(8 * MIB)
    wait_for_pages([buffer], 8 * MIB)
    following.close()
    assert resident(buffer) == 8 * MIB
