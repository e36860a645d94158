"""Causes of an engine process's death.

Owns: `Death`, and its derivation from the exit code, the system's counters and the last step. Never does: act on it.
Called by: `EngineProcess`.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Final, Literal, get_args

from core.api.messages import NO_HANDLE
from core_supervision.watch.breadcrumbs import LastStep

Cause = Literal["crash", "killed", "out_of_memory", "wedge", "exit"]
"""A signal caused by the process; a signal from outside; killed by the system for lack of memory; killed by its owner because
it hung; ended by itself."""

CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)

CRASHES: Final = frozenset({
    signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP,
})  # fmt: skip
"""Signals that a process causes itself; others come from outside."""

_OF_RANK: Final = re.compile(
    r"(Rank \d+ of \d+ \((?:process \d+(?: of node \d+)?|on node \d+))(?:, [^()]*)?(\) "
    r"(?:was killed by signal \d+ \(\w+\)|exited with code \d+|did not answer within [\d.]+ s) in step \d+)"
    r"|(Node \d+) \([^()]*\)( (?:gave no sign of life for [\d.]+ s|lost the connection to this engine|was stopped"
    r"|was lost with its Ray actor) in step \d+)"
)


@dataclass(frozen=True, slots=True)
class Death:
    """One death of an engine process.

    cause:    see `Cause`.
    sentence: the cause as a sentence, for log and health.
    suspects: handles of the sequences that it was computing; none when they are not suspect: between steps, or for lack of
              memory.
    """

    cause: Cause
    sentence: str
    suspects: tuple[int, ...] = ()


def death_of(
    returncode: int | None,
    last: LastStep | None,
    *,
    wedge: str | None = None,
    num_oom_kills: int = 0,
) -> Death:
    """Determine why a process died.

    returncode:    as in `subprocess`; None: it still runs.
    last:          the last step that it began.
    wedge:         why its owner killed it because it hung, as a clause; None otherwise.
    num_oom_kills: number of processes that the system has killed for lack of memory while it ran.
    """
    suspects = suspects_in(last)
    if wedge is not None:
        return Death("wedge", f"The engine process was killed because it hung: {wedge}.", suspects)
    if returncode == -signal.SIGKILL and num_oom_kills > 0:
        return Death("out_of_memory", "The engine process was killed by the system because memory was short.")
    return Death(_cause(returncode), f"The engine process ended unexpectedly: it {how_ended(returncode)}.", suspects)


def suspects_in(last: LastStep | None) -> tuple[int, ...]:
    """Return the handles of the sequences that a step was computing; none when it had ended."""
    if last is None or not last.computing:
        return ()
    return tuple(handle for handle in last.handles if handle != NO_HANDLE)


def how_ended(returncode: int | None) -> str:
    """Return the end of a process as a verb phrase after "it". returncode: as in `subprocess`; None: it still runs."""
    if returncode is None:
        return "still runs"
    if returncode >= 0:
        return f"exited with code {returncode}"
    number = -returncode
    return f"was killed by signal {number} ({_signal_name(number)})"


def _cause(returncode: int | None) -> Cause:
    if returncode is None or returncode >= 0:
        return "exit"
    return "crash" if -returncode in CRASHES else "killed"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "real-time"


def of_rank(sentence: str) -> str:
    """Return what a sentence about a death says of a rank or node; empty: nothing.

    It consists of fixed words and numbers, so anybody may read it: the rest may quote an exception, or name hosts.
    """
    found = _OF_RANK.search(sentence)
    return "" if found is None else "".join(part or "" for part in found.groups())
