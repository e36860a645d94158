"""The NUMA nodes of this machine, without torch.

Owns: reading them from sysfs. Never does: bind anything. Called by: the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from core_platforms.cpu import processors


def numa_nodes() -> Mapping[int, tuple[int, ...]]:
    """Return the processors of each node that has memory or processors, by the node's number; empty where none is listed."""
    found: dict[int, tuple[int, ...]] = {}
    for folder in (processors.SYSTEM / "devices/system/node").glob("node*"):
        number = folder.name.removeprefix("node")
        if number.isdigit():
            found[int(number)] = numbers_of((folder / "cpulist").read_text(encoding="ascii"))
    return dict(sorted(found.items()))


def numbers_of(text: str) -> tuple[int, ...]:
    """Return the numbers of a list in the kernel's and numactl's form, such as `0-3,8`. Raises ValueError."""
    found: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match is None:
            if text.strip():
                raise ValueError(part)
            continue
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found)
