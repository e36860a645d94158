"""The machine's counters: processor time of this process, and energy of its processors.

Owns: `Counters`, and where Linux has energy counters: powercap, and hwmon where there is no powercap. Never does: estimate
energy from power, or split it. Called by: the energy accounts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

POWERCAP: Final = Path("/sys/class/powercap")
HWMON: Final = Path("/sys/class/hwmon")
SOCKET: Final = "Esocket"
"""Labels of the counters of whole sockets, of the driver amd_energy; those of cores (`Ecore`) are parts of them. Other energy
counters of hwmon measure single rails or other devices."""

Reading = tuple[int, int | None]
"""Nanoseconds of the process, and microjoules of the machine."""


@dataclass(slots=True)
class _Meter:
    """One counter. path: file with microjoules. most: where it starts again at zero; None: never. last: the newest number."""

    path: Path
    most: int | None
    last: int


class Counters:
    """The counters of this machine. powercap, hwmon: folders of these frameworks of Linux.

    A counter of energy may start again at zero from time to time: it is added up here.
    """

    def __init__(
        self,
        powercap: Path = POWERCAP,
        processor_ns: Callable[[], int] = time.process_time_ns,
        hwmon: Path = HWMON,
    ) -> None:
        self._processor_ns = processor_ns
        self._meters = _powercap(powercap) or _hwmon(hwmon)
        self._sum = 0
        self.has_energy = bool(self._meters)

    def read(self) -> Reading:
        """Return what was used since the start of the process, and since this object was made."""
        return self._processor_ns(), self._energy()

    def _energy(self) -> int | None:
        if not self.has_energy:
            return None
        for meter in self._meters:
            now = _number(meter.path)
            if now is None or (now < meter.last and meter.most is None):
                self.has_energy = False
                return None
            self._sum += now - meter.last + (meter.most or 0) * (now < meter.last)
            meter.last = now
        return self._sum


def _powercap(folder: Path) -> list[_Meter]:
    """Return the counters of whole packages, which hold all others; none if any of them cannot be read."""
    found: list[_Meter] = []
    for path in sorted(folder.glob("*:*")):
        if path.name.count(":") == 1:
            last, most = _number(path / "energy_uj"), _number(path / "max_energy_range_uj")
            if last is None or most is None:
                return []
            found.append(_Meter(path / "energy_uj", most, last))
    return found


def _hwmon(folder: Path) -> list[_Meter]:
    """Return the counters of whole sockets; none if any of them cannot be read."""
    found: list[_Meter] = []
    for path in _sockets(folder):
        last = _number(path)
        if last is None:
            return []
        found.append(_Meter(path, None, last))
    return found


def _sockets(folder: Path) -> Iterator[Path]:
    for label in sorted(folder.glob("hwmon*/energy*_label")):
        try:
            text = label.read_text()
        except (OSError, UnicodeDecodeError):  # not a counter that this process may read
            continue
        if text.startswith(SOCKET):
            yield label.with_name(label.name.replace("_label", "_input"))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
