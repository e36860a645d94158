"""The device that is measured: timing, ceilings, and tensors on it.

Owns: how a call is timed, and the rates that shares refer to. Never does: choose what is measured. Called by: the stages.

On a processor, where the measurements are rehearsed, everything is done and no figure means anything.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.lease.rows import Row

GIB = 1 << 30
COLD = 128 << 20
"""Bytes that are written between two timed calls, so that none finds its inputs in the cache of the last."""


class Measurement(NamedTuple):
    """One measurement. limit: seconds after which it is ended."""

    name: str
    limit: float
    run: Callable[[Place], Iterator[Row]]


class Place:
    """A device, and whether its measurements are rehearsed in small sizes."""

    def __init__(self, device: str, *, tiny: bool) -> None:
        self.device = torch.device(device)
        self.is_cpu = self.device.type == "cpu"
        self.tiny = tiny
        torch.manual_seed(0)

    def pick(self, full: Any, tiny: Any) -> Any:
        """Return the size for this run."""
        return tiny if self.tiny else full

    def random(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Return normal numbers: zeros would cost a device less power, and be faster."""
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(dtype)

    def synchronize(self) -> None:
        """Wait for the device."""
        if not self.is_cpu:
            torch.cuda.synchronize()

    def is_sound(self) -> bool:
        """Whether the device still works for this process: an illegal access breaks it for good."""
        try:
            self.synchronize()
        except RuntimeError:
            return False
        return True

    def seconds_of(self, call: Callable[[], object], rounds: int = 20) -> float:
        """Return the median time of a call on the device with a cold cache."""
        rounds = self.pick(rounds, 1)
        for _ in range(self.pick(3, 1)):
            call()
        if self.is_cpu:
            begin = time.perf_counter()
            call()
            return time.perf_counter() - begin
        cache = torch.empty(COLD, dtype=torch.uint8, device=self.device)
        times = []
        for _ in range(rounds):
            cache.zero_()
            begin_mark = torch.cuda.Event(enable_timing=True)
            end_mark = torch.cuda.Event(enable_timing=True)
            begin_mark.record()
            call()
            end_mark.record()
            end_mark.synchronize()
            times.append(begin_mark.elapsed_time(end_mark) / 1000)
        return statistics.median(times)

    def host_seconds_of(self, call: Callable[[], object], rounds: int = 200) -> float:
        """Return the host's time for one call, which the device computes later."""
        rounds = self.pick(rounds, 2)
        call()
        self.synchronize()
        begin = time.perf_counter()
        for _ in range(rounds):
            call()
        seconds = (time.perf_counter() - begin) / rounds
        self.synchronize()
        return seconds

    @functools.cached_property
    def copy_rate(self) -> float:
        """Bytes read and written in a second by a copy."""
        nbytes = self.pick(4 * GIB, 1 << 20)
        source = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * nbytes / self.seconds_of(lambda: target.copy_(source))

    @functools.cached_property
    def matmul_rate(self) -> float:
        """Operations in a second of a bfloat16 product of square matrices of random numbers."""
        size = self.pick(8192, 64)
        left, right = self.random(size, size), self.random(size, size)
        out = torch.empty_like(left)
        return 2 * size**3 / self.seconds_of(lambda: torch.matmul(left, right, out=out))
