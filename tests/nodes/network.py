"""Two machines on one: network namespaces with a wire between them, which can be slow, lossy or cut. Needs root and iproute2.

The wire is a thread between two TUN devices, because `tc netem` is a module that many kernels lack.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

TUNSETIFF = 0x400454CA
PLAIN_TUN = 0x1001
"""IFF_TUN | IFF_NO_PI: packets without a header of the device."""
CLONE_NEWNET = 0x40000000
MTU = 1500
_libc = ctypes.CDLL(None, use_errno=True)


class Network:
    """Two namespaces, `A` and `B`.

    addresses: of the two on the wire.
    delay_s: of each packet. loss: share of packets that are dropped. is_cut: whether all are.
    """

    addresses: ClassVar = {"A": "10.77.0.1", "B": "10.77.0.2"}

    def __init__(self) -> None:
        self.delay_s, self.loss, self.is_cut = 0.0, 0.0, False
        self._names = {side: f"core-{os.getpid()}-{side}" for side in self.addresses}
        self._devices = [self._machine(side, other) for side, other in (("A", "B"), ("B", "A"))]
        self._is_over = False
        self._wire = threading.Thread(target=self._carry, daemon=True)
        self._wire.start()

    def words(self, side: str) -> list[str]:
        """The beginning of a command that runs on one of the machines."""
        return ["ip", "netns", "exec", self._names[side]]

    @contextmanager
    def inside(self, side: str) -> Iterator[None]:
        """Let sockets that this thread makes be those of a machine."""
        with open("/proc/thread-self/ns/net") as own, open(f"/run/netns/{self._names[side]}") as other:
            _enter(other.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())

    def close(self) -> None:
        """End the wire, and remove the machines with all that listens there."""
        self._is_over = True
        self._wire.join()
        for device in self._devices:
            os.close(device)
        for name in self._names.values():
            _run("ip", "netns", "del", name)

    def _machine(self, side: str, other: str) -> int:
        """Make a namespace with the end of the wire; returns the device."""
        _run("ip", "netns", "add", self._names[side])
        _run(*self.words(side), "ip", "link", "set", "lo", "up")
        with self.inside(side):
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"wire", PLAIN_TUN))
        _run(
            *self.words(side),
            "ip",
            "address",
            "add",
            self.addresses[side],
            "peer",
            self.addresses[other],
            "dev",
            "wire",
        )
        _run(*self.words(side), "ip", "link", "set", "wire", "up")
        return device

    def _carry(self) -> None:
        """Carry packets from each end to the other."""
        first, second = self._devices
        others = {first: second, second: first}
        under_way: list[tuple[float, int, int, bytes]] = []
        numbers = itertools.count()
        draw = random.Random(1)
        while not self._is_over:
            wait = max(under_way[0][0] - time.monotonic(), 0.0) if under_way else 0.05
            for device in select.select(self._devices, [], [], min(wait, 0.05))[0]:
                packet = os.read(device, MTU + 100)
                if not self.is_cut and draw.random() >= self.loss:
                    heapq.heappush(under_way, (time.monotonic() + self.delay_s, next(numbers), others[device], packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, device, packet = heapq.heappop(under_way)
                os.write(device, packet)


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
