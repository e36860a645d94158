"""The engine process of a command, spawned while the arguments are still being read.

Owns: the guess which executor they will choose, so that the process can import its libraries meanwhile. Never does: choose
one (the configuration does). Called by: the commands with an engine of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core_supervision.child import EngineProcess


def spawn_early(values: Mapping[str, Any]) -> EngineProcess:
    """Spawn the engine process. values: the arguments `executor` and `config`, as far as the command line gives them.

    Where they may name another executor than the usual one, the process imports none before it is chosen: torch alone
    takes seconds and 200 MB, which an executor without it should not pay for.
    """
    from core_supervision.child import EngineProcess

    return EngineProcess.spawn("") if _may_name_another(values) else EngineProcess.spawn()


def early_values(words: Sequence[str]) -> dict[str, str]:
    """Return the two arguments from the words of a command line that is not parsed yet."""
    values: dict[str, str] = {}
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in ("--executor", "--config"):
            values[flag.removeprefix("--")] = value if equals else "".join(words[place + 1 : place + 2])
    return values


def _may_name_another(values: Mapping[str, Any]) -> bool:
    if "executor" in values:
        return True
    path = values.get("config")
    try:
        return path is not None and "executor" in Path(str(getattr(path, "value", path))).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False  # the parser reports it
