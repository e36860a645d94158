"""One engine of a group.

Owns: `Member`: its client, its state and its statistics, across the engines that follow one another at this place. Never
does: choose a member, or restart one. Called by: the group, its calls and its recovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from core.api.errors import EngineDeadError
from core_frontend.stat_totals import StatTotals
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.revival import EngineSource

ENDED: Final = "ended"
"""The state of a member whose process an operator has ended, and the cause that there is none."""
MemberState = Literal["running", "draining", "drained", "ended", "starting", "trying", "restarting", "gone"]


@dataclass
class Member:
    """The engine at one place of a group, or its successor.

    index:  place in the group, from 0.
    source: provides the next engine.
    connected: the client of its engine, or of the last one; None: there was none when this process began.
    state:  `running` takes requests; `draining` takes none, and those that it has leave it; `drained` has none left; `ended`
            has no process until an operator wants one; `trying` computes only requests that engines may die of; `restarting`
            has no engine; `gone` will have none.
    is_drained: whether an operator has taken it out, its next engines included.
    is_starting: whether the server grows by it: it has no engine yet, and calls wait for it as for one that was ended.
    is_leaving: whether its engine has been asked to end, and ends once its requests are elsewhere; the next one takes requests.
    missed: calls that the other engines have executed and this one has not; its next engine gets them before it serves.
    error:  why there is no engine, while there is none.
    """

    index: int
    source: EngineSource
    connected: ZmqClient | None
    state: MemberState = "running"
    missed: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    error: EngineDeadError | None = None
    is_drained: bool = False
    is_leaving: bool = False
    is_starting: bool = False
    totals: StatTotals = field(default_factory=StatTotals)

    @property
    def client(self) -> ZmqClient:
        """The client of its engine, or of the last one that it had."""
        assert self.connected is not None, "a member that has never had an engine is gone"
        return self.connected

    @property
    def is_out(self) -> bool:
        """Whether it gets no requests although it may have an engine."""
        return self.is_drained or self.is_leaving

    @property
    def is_alive(self) -> bool:
        """Whether there is an engine that can be called."""
        return self.state not in ("ended", "restarting", "gone") and self.client.dead_error is None


class EngineState(msgspec.Struct, omit_defaults=True):
    """One engine of a group, as operators see it.

    state: see `Member`; `starting`: the server grows by it. cause: of the death, while there is no engine.
    """

    engine: int
    state: MemberState
    num_running: int
    num_waiting: int
    cause: str = ""


def state_of(member: Member) -> EngineState:
    """Return the state of a member."""
    stats = member.totals.latest
    cause = "" if member.error is None else member.error.cause
    state: MemberState = "starting" if member.is_starting else member.state
    return EngineState(member.index, state, stats.num_running, stats.num_waiting, cause)
