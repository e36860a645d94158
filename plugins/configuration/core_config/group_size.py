"""How many engines a group may have, and how many it begins with.

Owns: `most_engines` and `engines_at_start`, from the arguments. Never does: check them. Called by: rules about groups, the
stages, and the construction of the configurations.
"""

from __future__ import annotations

from typing import Any, Protocol


class Values(Protocol):
    """Arguments by name."""

    def __getitem__(self, name: str) -> Any: ...


def most_engines(values: Values) -> int:
    """Return the engines that the group of a server may have at any time."""
    size = int(values["data_parallel_size"])
    if not values["enable_elastic_ep"]:
        return size
    return max(size, int(values["elastic_ep_max_dp_size"] or size))


def engines_at_start(values: Values) -> int:
    """Return the engines that run when the server begins; 0: all of them do."""
    size = int(values["data_parallel_size"])
    return size if size < most_engines(values) else 0
