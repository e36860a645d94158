"""Processor-time limits that control groups set for this process, without torch.

Owns: locating the process's control groups (version 1 and 2) and reading their quotas. Never does: change one.
Called by: `processors`, at the start and while the engine runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

GROUPS = "fs/cgroup"
CONTROLLERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")
"""Folder names under which version 1's CPU-time controller is mounted."""


def quota(system: Path, membership: str) -> float | None:
    """Return the processors' worth of time that the tightest of the process's groups allows; None without a limit.

    system: where sysfs is, such as /sys.
    membership: the text of /proc/self/cgroup, empty where there is none.
    """
    limits: list[float] = []
    for group in groups(system / GROUPS, membership):
        limits += _version_2(group)
        limits += _version_1(group)
    return min(limits, default=None)


def groups(root: Path, membership: str) -> Iterator[Path]:
    """Yield the folders of the process's groups and of their parent groups; a container may see only the outermost."""
    for mount, path in _memberships(root, membership):
        inner = Path(path.lstrip("/"))
        if ".." not in inner.parts:  # otherwise the group lies outside what is mounted here
            yield mount / inner
            yield from (mount / outer for outer in inner.parents if outer != Path())
        yield mount


def _memberships(root: Path, membership: str) -> Iterator[tuple[Path, str]]:
    """Yield (mount point of the hierarchy, the process's path in it); the root of each hierarchy when `membership` is
    empty.
    """
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
    """Return the limit of `cpu.max`, such as `150000 100000` in microseconds, in processors; empty without one."""
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
