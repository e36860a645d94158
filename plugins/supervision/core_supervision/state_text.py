"""Text about the state of an engine, for clients and refusals.

Owns: those sentences. Never does: change a state. Called by: the state keeper and the lifecycle.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from core.api.stats import HaltHolder
from core_supervision.engine_state import OPERATOR, EngineState, Holder

ENDS: Final = {
    "pause": "the operator has paused the engine since {since} (/resume ends it)",
    "sleep": "the engine sleeps since {since} (/wake_up ends it)",
}


def holders_sentence(state: EngineState) -> str:
    """Return all holders of a halt, with owner and time, as one sentence; empty when there is none."""
    clauses = [_clause(holder) for holder in state.holders]
    if state.missing and state.sleeper is None:
        clauses.append(f"memory is missing: {', '.join(state.missing)} (/wake_up brings it back)")
    text = "; ".join(clauses)
    return text[:1].upper() + text[1:] + "." if text else ""


def described_holders(state: EngineState) -> list[dict[str, Any]]:
    """Return the holders as plain values."""
    return [
        {
            "reason": holder.reason,
            "owner": _owner(holder),
            "since": holder.since,
            "waits_for_requests": holder.drains,
        }
        for holder in state.holders
    ]


def reported_holders(state: EngineState) -> tuple[HaltHolder, ...]:
    """Return the holders as reported to all clients; memory that is missing without a sleep counts as a holder."""
    told = [HaltHolder(holder.reason, holder.since) for holder in state.holders]
    if state.missing and state.sleeper is None:
        told.append(HaltHolder("memory"))
    return tuple(told)


def _clause(holder: Holder) -> str:
    since = datetime.fromtimestamp(holder.since).astimezone().isoformat(" ", "seconds")
    if holder.reason in ENDS:
        return ENDS[holder.reason].format(since=since)
    waits = "waits for requests to end" if holder.drains else "holds new requests"
    return f"{_owner(holder)} {waits} since {since} (its end, or /resume, ends it)"


def _owner(holder: Holder) -> str:
    if holder.client == OPERATOR:
        return "operator"
    return f"call {holder.call} of client {holder.client}"
