"""Calls of an engine's utilities by name.

Owns: `call_utility`, which checks name and arguments; the names of utilities that take long; the number of the owner. Never
does: make a table.
Called by: `EngineCalls`, which has the table; the engine's loop and the watch over it, which allow such calls their time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from core.api.errors import UtilityError, nearest

OWNER: Final = 0
"""Number of the client that started the engine, or of the program that runs it in its own process."""

LONG: Final = frozenset({
    "sleep", "wake_up", "update_weights", "start_weight_update", "finish_weight_update", "reload_weights",
    "reset_prefix_cache", "start_profile", "stop_profile",
})  # fmt: skip
"""Calls that read or write weights, sweep a disk, or write a trace: the engine may send nothing for minutes."""


def call_utility(utilities: Mapping[str, Callable[..., Any]], method: str, arguments: Mapping[str, Any]) -> Any:
    """Call the utility `method` with these arguments; returns its result.

    utilities: functions by name. Their parameters are the arguments that a call may have.
    Raises UtilityError, which lists the known ones, for an unknown name, an unknown argument, or a missing one.
    """
    utility = utilities.get(method)
    if utility is None:
        known = ", ".join(sorted(utilities))
        raise UtilityError(f"Utility {method!r} is unknown; expected one of {known}.{nearest(method, utilities)}")
    parameters = inspect.signature(utility).parameters
    for name in arguments:
        if name not in parameters:
            expected = ", ".join(parameters) or "none"
            raise UtilityError(f"Utility {method!r} has no argument {name!r}; expected: {expected}.")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise UtilityError(f"Utility {method!r} was called without its argument {name!r}; give it.")
    return utility(**arguments)
