"""The process group of torch.distributed for scripts that ask it for their rank, once all ranks have met.

Owns: `open_group`. Never does: carry a sum of a model (the engine's own wires do). Called by: the client of launched ranks.

It is gloo on the loopback interface, so it exists where all ranks are on one host. gloo knows no keys, so scripts on several
hosts that want a group call `torch.distributed.init_process_group` themselves.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

from core_supervision.link.secured import is_loopback

if TYPE_CHECKING:
    from torch.distributed import Store

BACKEND: Final = "core_loopback"


def open_group(store: Store, address: str, rank: int, size: int) -> None:
    """Make the default process group of this process. Does nothing where there is one, or where ranks are on other hosts.

    address: of rank 0.
    """
    import torch.distributed as dist

    if dist.is_initialized() or not is_loopback(address):
        return
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _gloo, devices=["cpu"])
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size)


def _gloo(store: Store, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    import torch.distributed as dist

    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(store, rank, size, options)
