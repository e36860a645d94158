"""Parameters in the query of a request.

Owns: their checks, whose errors have OpenAI's form. Never does: know what they mean. Called by: the routes of
operators.
"""

from __future__ import annotations

from typing import get_args

from fastapi import Request

from core.api.errors import RequestError, nearest
from core.api.weights import PauseMode

FLAGS = {"true": True, "1": True, "false": False, "0": False}
MODES: tuple[PauseMode, ...] = get_args(PauseMode)


def check_names(request: Request, *once: str, often: str | None = None) -> None:
    """Raise RequestError for parameters that are unknown, or given twice. often: one that may be repeated."""
    query = request.query_params
    known = [*once, *([often] if often else [])]
    for name in query:
        if name not in known:
            expected = f"expected {', '.join(known)}" if known else "none is expected"
            raise RequestError(f"{name} is no parameter of this path; {expected}.{nearest(name, known)}", param=name)
        if name != often and len(query.getlist(name)) > 1:
            raise RequestError(f"{name} is given {len(query.getlist(name))} times; expected one.", param=name)


def flag_of(name: str, text: str) -> bool:
    """Read a boolean parameter. Raises RequestError."""
    flag = FLAGS.get(text.lower())
    if flag is None:
        raise RequestError(f"{name} is {text!r}; expected true or false.", param=name)
    return flag


def level_of(text: str) -> int:
    """Read the level of a sleep. Raises RequestError."""
    if text not in ("1", "2"):
        raise RequestError(
            f"level is {text!r}; expected 1 or 2. To compute nothing for a while: POST /pause.", param="level"
        )
    return int(text)


def number_of(name: str, text: str) -> int:
    """Read a number from 0 on. Raises RequestError."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RequestError(f"{name} is {text[:100]!r}; expected a number, such as {name}=0.", param=name)
    return int(text)


def mode_of(text: str) -> PauseMode:
    """Read the mode for requests that run or wait. Raises RequestError."""
    for mode in MODES:
        if text == mode:
            return mode
    raise RequestError(f"mode is {text!r}; expected one of {', '.join(MODES)}.{nearest(text, MODES)}", param="mode")
