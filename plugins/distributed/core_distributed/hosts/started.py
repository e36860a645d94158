"""Hosts of ranks that the engine itself starts, unlike those on which a user gives a command.

Owns: `StartedHosts`, the contract. Called by: the start of an engine on several hosts; Ray implements it.
"""

from __future__ import annotations

from typing import Protocol

from core_distributed.hosts.nodes import Nodes


class StartedHosts(Protocol):
    """The other hosts of one engine."""

    def start(self, nodes: Nodes) -> None:
        """Start them. They come to `nodes`, and an end that `nodes` cannot see is reported there. Raises CoreError."""
        ...

    def close(self) -> None:
        """End them, once `nodes` has told them to end. Does nothing when called again."""
        ...
