"""Generated ids for calls without one.

Owns: the forms of ids. Never does: read answers. Called by: the parser.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from random import Random, SystemRandom

from core_formats.response_format import IdKind

_LETTERS = string.ascii_letters + string.digits


def call_ids(kind: IdKind, new_id: Callable[[], str] | None, draw: Random | None = None) -> Callable[[int, str], str]:
    """Return a function from a call's index and name to an id.

    new_id: generates random ids, where templates accept any.
    draw: source of randomness; None: the system's.
    """
    source = SystemRandom() if draw is None else draw

    def made(index: int, name: str) -> str:
        if kind == "functions_name_index":
            return f"functions.{name}:{index}"
        if kind == "alphanumeric9":
            return "".join(source.choice(_LETTERS) for _ in range(9))
        return new_id() if new_id is not None else f"call_{source.getrandbits(96):024x}"

    return made
