"""This process's connection to a Ray cluster.

Owns: the import of Ray, the connection, the wait for a placement group, and what this process reads about the cluster.
Never does: start a cluster or an actor. Called by: `RayHosts`, and an API server whose engines Ray starts.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from core.api.errors import CoreError, UserError

logger = logging.getLogger(__name__)

FIRST_REMINDER_S: Final = 2.0
REMIND_S: Final = 30.0
ADDRESS: Final = "RAY_ADDRESS"
"""Ray's own variable, in which it looks for the address of a cluster."""


class Cluster:
    """The cluster that this process belongs to. flag: the argument that asks for it. Raises UserError where there is none.

    ray: the module. address: of this process's node.
    """

    def __init__(self, flag: str) -> None:
        self._flag = flag
        self.ray = _imported(flag)
        self._is_ours = not self.ray.is_initialized()
        if self._is_ours:
            _connect(self.ray, flag)
        own = self.ray.get_runtime_context().get_node_id()
        self._nodes = [node for node in self.ray.nodes() if node["Alive"]]
        self.address = next(str(node["NodeManagerAddress"]) for node in self._nodes if node["NodeID"] == own)

    def share(self, bundles: int) -> int:
        """Return the processors that each of so many equal bundles gets where all fit: at least one."""
        processors = [int(node["Resources"].get("CPU", 0)) for node in self._nodes]
        usable = [count for count in processors if count > 0]
        if not usable:
            return 1
        of_node = math.ceil(bundles / len(usable))
        return max(min(usable) // of_node, 1)

    def room(self) -> str:
        """Return the processors of each node, and what is free of all, for people."""
        processors = ", ".join(
            f"{node['NodeManagerAddress']}: {node['Resources'].get('CPU', 0):g}" for node in self._nodes
        )
        free = self.ray.available_resources().get("CPU", 0)
        return f"processors of the nodes: {processors}; free now: {free:g}"

    def reserve(self, bundles: list[dict[str, float]], strategy: str, limit_s: float) -> Any:
        """Return a placement group once all of its bundles have room. Raises CoreError after `limit_s`."""
        group = self.ray.util.placement_group(bundles, strategy=strategy)
        asked = f"{len(bundles)} bundles of {bundles[0]['CPU']:g} processors"
        asked += ", each on a node of its own" if strategy == "STRICT_SPREAD" else ""
        begin = time.monotonic()
        wait_s = FIRST_REMINDER_S
        while not group.wait(min(wait_s, max(begin + limit_s - time.monotonic(), 0.01))):
            if time.monotonic() - begin >= limit_s:
                self.ray.util.remove_placement_group(group)
                raise CoreError(
                    f"{self._flag}: Ray has had no place within {limit_s:g} s for {asked} ({self.room()}); ask for fewer "
                    "of them or fewer threads (--platform-config.threads), or give the cluster more nodes."
                )
            logger.warning("Waiting for a place in the Ray cluster for %s (%s)", asked, self.room())
            wait_s = REMIND_S
        return group

    def close(self) -> None:
        """Leave the cluster, unless the program has joined it before."""
        if self._is_ours:
            self.ray.shutdown()


def _imported(flag: str) -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UserError(
            f'{flag}: Ray cannot be imported ({error}); install it with: pip install "core-engine-distributed[ray]", or leave '
            "the argument out for processes of this host."
        ) from error


def _connect(ray: Any, flag: str) -> None:
    """Join the cluster that Ray itself would choose: RAY_ADDRESS, or one of this machine."""
    address = os.environ.get(ADDRESS, "")
    if address.startswith("ray://"):
        raise UserError(
            f"{flag}: {ADDRESS} {address} is that of a remote client, and rank 0 is in this process; start the engine on a "
            f"node of the cluster, with {ADDRESS}=HOST:PORT or without it."
        )
    try:
        with _same_handlers():
            ray.init(address="auto", configure_logging=False, log_to_driver=True)
    except (ConnectionError, RuntimeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{flag}: no Ray cluster was found ({first}); start one with `ray start --head`, or name one in {ADDRESS}."
        ) from error


@contextlib.contextmanager
def _same_handlers() -> Iterator[None]:
    """Keep the process's own handlers of signals: Ray installs one of SIGTERM, which is a matter of the engine's parent."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
