"""Deaths and failures at named places.

Owns: `Faults`: which places are armed, and what happens there. Never does: decide where (the schedule does).
Called by: everything that stands in for a device, a file or a step.

Places: `start`, `message` (one is taken), `record.write`, `record.written`, `step.begin`, `step.end`, `submit`, `stage`,
`staged`, `discard`, `settle`, `journal.create`, `journal.write`, `journal.sync`, `journal.unlink`,
`release`, `release.late`, `released`, `restore`, `restore.late`, `restored`, `apply`, `apply.late`, `applied`, `exchange`,
`exchange.late`, `exchange_back`, `exchange_back.late`, `reload`, `reload.late`, `disk.open`.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from core.api.errors import UserError
from tests.simulation.events import Fault
from tests.simulation.loop import Died

if TYPE_CHECKING:
    from tests.simulation.engine import SimEngineProcess


class Armed:
    """A fault that waits for its time. left: passes until then."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.left = fault.nth
        self.times = fault.times


class Faults:
    """Of one schedule."""

    def __init__(self) -> None:
        self._armed: dict[str, list[Armed]] = {}

    def arm(self, fault: Fault) -> None:
        """From now on."""
        self._armed.setdefault(fault.point, []).append(Armed(fault))

    def disarm(self) -> None:
        """Nothing happens any more."""
        self._armed.clear()

    def pass_by(self, process: SimEngineProcess, name: str) -> None:
        """An engine has come to a place. Raises what happens there."""
        waiting = self._armed.get(name)
        if not waiting:
            return
        armed = waiting[0]
        if armed.fault.what == "hang" and not _may_hang(process):
            return
        armed.left -= 1
        if armed.left > 0:
            return
        armed.times -= 1
        if armed.times <= 0:
            waiting.pop(0)
        if armed.fault.what == "die":
            process.die()
            raise Died
        if armed.fault.what == "hang":
            process.hang()
        process.world.failed_at(name)
        raise _error(armed.fault.what)


def _may_hang(process: SimEngineProcess) -> bool:
    """Whether a hang is noticed soon: a start has half an hour, and a step ten minutes while nothing is known of steps."""
    loop = process.world.engine_loop
    return loop is not None and not loop._core.scheduler.in_flight


def _error(what: str) -> Exception:
    if what == "no_space":
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if what == "user":
        return UserError("the simulated files cannot be used")
    if what == "memory":
        return MemoryError("no memory for the simulated weights")
    return RuntimeError("a simulated defect")
