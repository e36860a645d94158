"""The processor time that control groups allow this process, without torch.

Owns: finding the process's groups, of version 1 and 2, and reading their quotas. Never does: change one.
Called by: `processors`, at the start and while the engine runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

GROUPS = "fs/cgroup"
CONTROLLERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")
"""Folders that version 1's controller of processor time is mounted at."""


def quota(system: Path, membership: str) -> float | None:
    """Processors' worth of time that the tightest of the process's groups allows; None without a limit.

    system: where sysfs is, such as /sys.
    membership: the text of /proc/self/cgroup, empty where there is none.
    """
    limits: list[float] = []
    for group in groups(system / GROUPS, membership):
        limits += _version_2(group)
        limits += _version_1(group)
    return min(limits, default=None)


def groups(root: Path, membership: str) -> Iterator[Path]:
    """The folders of the process's groups and of those around them; a container may see only the outermost."""
    for mount, path in _memberships(root, membership):
        inner = Path(path.lstrip("/"))
        if ".." not in inner.parts:  # else it lies outside of what is mounted here
            yield mount / inner
            yield from (mount / outer for outer in inner.parents if outer != Path())
        yield mount


def _memberships(root: Path, membership: str) -> Iterator[tuple[Path, str]]:
    """(where the hierarchy is mounted, the process's path in it); the root of each where nothing is said."""
    found = {root: "/"}
    for controller in CONTROLLERS:
        found[root / controller] = "/"
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found[root] = path
            found[root / "unified"] = path
        elif "cpu" in controllers.split(","):
            for controller in CONTROLLERS:
                found[root / controller] = path
    yield from found.items()


def _version_2(group: Path) -> list[float]:
    """The limit of `cpu.max`, such as `150000 100000` in microseconds; empty without one."""
    limit, _, period = _read(group / "cpu.max").partition(" ")
    return _processors(limit, period)


def _version_1(group: Path) -> list[float]:
    limit = _read(group / "cpu.cfs_quota_us")
    period = _read(group / "cpu.cfs_period_us")
    return _processors(limit, period)


def _processors(limit: str, period: str) -> list[float]:
    if not (limit.isdigit() and period.isdigit()) or int(period) == 0:
        return []
    return [int(limit) / int(period)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
