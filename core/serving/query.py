"""Parameters in the query of a request.

Owns: their checks, whose errors are OpenAI's. Never does: know what they mean. Called by: the routes of operators.
"""

from __future__ import annotations

from typing import get_args

from core.api.errors import RequestError, nearest
from core.api.weights import PauseMode

FLAGS = {"true": True, "1": True, "false": False, "0": False}
MODES: tuple[PauseMode, ...] = get_args(PauseMode)


def flag_of(name: str, text: str) -> bool:
    """Raises RequestError."""
    flag = FLAGS.get(text.lower())
    if flag is None:
        raise RequestError(f"{name} is {text!r}; expected true or false.", param=name)
    return flag


def level_of(text: str) -> int:
    """The level of a sleep. Raises RequestError."""
    if text not in ("1", "2"):
        raise RequestError(
            f"level is {text!r}; expected 1 or 2. To compute nothing for a while: POST /pause.", param="level"
        )
    return int(text)


def mode_of(text: str) -> PauseMode:
    """What becomes of requests that are there. Raises RequestError."""
    for mode in MODES:
        if text == mode:
            return mode
    raise RequestError(f"mode is {text!r}; expected one of {', '.join(MODES)}.{nearest(text, MODES)}", param="mode")
