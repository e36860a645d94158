"""Calls of an engine's utilities by name.

Owns: `call_utility`, which checks name and arguments. Never does: know any utility.
Called by: `EngineCore.call`, which has the table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from core.api.errors import UtilityError, nearest


def call_utility(utilities: Mapping[str, Callable[..., Any]], method: str, arguments: Mapping[str, Any]) -> Any:
    """Call the utility `method` with these arguments; returns its answer.

    utilities: functions by name. Their parameters are the arguments that a call may have.
    Raises UtilityError, which lists what is known, for another name, another argument, or one that is missing.
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
