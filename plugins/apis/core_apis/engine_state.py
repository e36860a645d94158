"""The state of the engine in the words of /health, /ready, /live, /is_paused and /is_sleeping.

Owns: these words, derived from what the engine reports to every client. Never does: ask the engine, or name a client.
Called by: their routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from core.api.errors import RequestError
from core.api.stats import HaltHolder, SchedulerStats
from core_apis.engine_protocol import ServingEngine
from core_apis.protocol.operation import HolderAnswer, State

RESUME: Final = "POST /resume"
WAKE_UP: Final = "POST /wake_up"
ITS_END: Final = "its end"

HOLDERS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "pause": ("operator", RESUME),
        "sleep": ("operator", WAKE_UP),
        "wait": ("a waiting call", f"{ITS_END}, or {RESUME}"),
        "memory": ("a failed sleep", WAKE_UP),
    }
)
"""The holder of requests and what ends the hold, by its reason."""
UPDATES: Final = frozenset({"update_weights", "finish_weight_update", "reload_weights"})
PHASES: Final[Mapping[str, State]] = MappingProxyType(
    {"running": "serving", "draining": "draining", "paused": "paused", "asleep": "sleeping"}
)


def state_of(engine: ServingEngine) -> State:
    """Return one word for what happens to a request that arrives now."""
    if engine.restarts.paused_since is not None:
        return "recovering"
    stats = engine.stats
    if stats.utility in UPDATES:
        return "updating weights"
    if stats.utility == "sleep":
        return "sleeping"
    is_asleep = any(holder.reason in ("sleep", "memory") for holder in stats.holders)
    return PHASES.get(stats.phase, "sleeping" if is_asleep else "updating weights")


def check_ready(engine: ServingEngine) -> None:
    """Raise RequestError (503) unless a request that arrives now is computed."""
    state = state_of(engine)
    if state == "serving":
        return
    ends = ["the start of the next engine"] if state == "recovering" else []
    rank = engine.restarts.latest[-1].rank if ends else ""
    ends += [holder.ends_with for holder in holders_of(engine) or ()]
    raise RequestError(
        f"The server is not ready: it is {state}, and a request that comes now waits. "
        f"{f'The reason: {rank}. ' if rank else ''}What ends this: {'; '.join(ends)}.",
        status=503,
        code="not_ready",
    )


def check_recovered(engine: ServingEngine) -> None:
    """Raise RequestError (503) while the engine is being started again after its death."""
    if engine.restarts.paused_since is not None:
        check_ready(engine)


def holders_of(engine: ServingEngine) -> list[HolderAnswer] | msgspec.UnsetType:
    """Return why requests wait; UNSET if none waits for a reason of the lifecycle."""
    stats = engine.stats
    holders = [*_calls(stats), *(_answer(holder) for holder in stats.holders)]
    return holders or msgspec.UNSET


def _calls(stats: SchedulerStats) -> list[HolderAnswer]:
    """Return the call that the engine is executing, as a holder."""
    if stats.utility in UPDATES:
        return [HolderAnswer("update", "a weight update", ITS_END, stats.utility_since)]
    if stats.utility == "sleep" and not any(holder.reason == "sleep" for holder in stats.holders):
        return [HolderAnswer("sleep", "operator", WAKE_UP, stats.utility_since)]
    return []


def _answer(holder: HaltHolder) -> HolderAnswer:
    name, ends_with = HOLDERS[holder.reason]
    return HolderAnswer(holder.reason, name, ends_with, holder.since or msgspec.UNSET)
