"""A communicator over torch's gloo, for comparison and for doubts about the native one.

Owns: `GlooCommunicator`, `GlooLink`. Never does: choose it (`--disable-custom-all-reduce` does). Called by: workers of ranks.
"""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist
from torch import Tensor

from core_runtime.executor.ranks import RankGroup


class GlooCommunicator:
    """Operations on tensors over gloo on the loopback interface; implements `core_runtime.contracts.Communicator`."""

    capturable = False

    def __init__(self, group: RankGroup, timeout_s: float) -> None:
        self.rank = group.rank
        self.size = group.size
        self._group = _process_group(group, timeout_s)

    def all_reduce(self, x: Tensor) -> None:
        """Replace x by the sum over all ranks. Gathered first: gloo's own order of additions depends on sizes."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._group.allgather([parts], [x.contiguous()]).wait()
        x.copy_(_tree(parts))

    def all_gather(self, x: Tensor, out: Tensor, start: int, root: int | None = None) -> None:
        """Write x of each rank to its columns of out."""
        widest = -(-out.shape[1] // self.size)
        sent = torch.zeros(x.shape[0], widest + 1)
        sent[:, : x.shape[1]] = x
        sent[:, -1] = start
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        self._group.allgather([parts], [sent]).wait()
        for part in parts:
            first = int(part[0, -1]) if len(part) else 0
            width = min(widest, out.shape[1] - first)
            out[:, first : first + width] = part[:, :width]

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        """Write this rank's rows of the sum over all ranks to out."""
        self.all_reduce(x)
        count = x.shape[0] // self.size
        out.copy_(x[self.rank * count : (self.rank + 1) * count])

    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        """Send the i-th of `size` equal parts of x to rank i."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._group.allgather([parts], [x]).wait()
        count = x.numel() // self.size
        mine = slice(self.rank * count, (self.rank + 1) * count)
        out.view(-1).copy_(torch.cat([part.view(-1)[mine] for part in parts]))

    def broadcast(self, x: Tensor, root: int) -> None:
        """Replace x, contiguous, by the root's."""
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._group.broadcast([x], options).wait()


class GlooLink:
    """Sends from rank 0 of a group of two to rank 1; implements `core_runtime.contracts.Link`."""

    def __init__(self, group: RankGroup, timeout_s: float) -> None:
        self._group = _process_group(group, timeout_s)
        self._under_way: list[tuple[dist.Work, Tensor]] = []

    def send(self, x: Tensor) -> None:
        """Send a copy of x once the previous tensors have arrived."""
        if x.numel():
            copy = x.clone().view(torch.uint8)
            self._under_way = [(work, sent) for work, sent in self._under_way if not work.is_completed()]
            self._under_way.append((self._group.send([copy], 1, 0), copy))

    def recv(self, x: Tensor) -> None:
        """Replace x, contiguous, by the next tensor."""
        if x.numel():
            self._group.recv([x.view(torch.uint8)], 0, 0).wait()


def _process_group(group: RankGroup, timeout_s: float) -> dist.ProcessGroupGloo:
    """Join the processes of a group over the loopback interface."""
    store = _store(group)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = datetime.timedelta(seconds=timeout_s)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(store, group.rank, group.size, options)


def _tree(parts: list[Tensor]) -> Tensor:
    """Return the sum of the first half (the largest power of two), plus that of the rest."""
    if len(parts) == 1:
        return parts[0]
    half = 1 << ((len(parts) - 1).bit_length() - 1)
    return _tree(parts[:half]) + _tree(parts[half:])


def _store(group: RankGroup) -> dist.Store:
    """Return the store by which ranks find each other; its port is the system's choice, and goes through the group."""
    if group.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, group.size, is_master=True, wait_for_workers=False)
        group.share(str(store.port).encode())
        return store
    port = int(group.share(b""))
    return dist.TCPStore("127.0.0.1", port, group.size, is_master=False)
