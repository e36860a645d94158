"""The error for a declaration that is not served, as a sentence.

Owns: the error, and the check that no key is overlooked. Never does: know a method. Torch-free.
Called by: methods that read declarations; their manifests pass its reason to the selection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from core.api.errors import UserError, nearest
from core.api.reason import Reason


class Refusal(UserError):
    """One key of a declaration has a value that is not served.

    reason: the same information for selection.
    """

    def __init__(self, key: str, required: str, actual: object, hint: str = "") -> None:
        self.reason = Reason(key, required, str(actual), hint)
        super().__init__(f"The checkpoint's quantization_config: {self.reason}.")


def known_keys(where: str, found: Mapping[str, Any], used: Iterable[str], neutral: Mapping[str, str]) -> None:
    """Raise Refusal for a key that is neither used nor neutral. Absent values count as no key.

    where: place of these keys in the declaration, empty at its top.
    neutral: keys without effect on the weights, each with the reason.
    """
    known = {*used, *neutral}
    for key, value in found.items():
        if key in known or value is None:
            continue
        path = f"{where}.{key}" if where else key
        hint = nearest(key, known).strip() or "a newer version of the engine may know it"
        raise Refusal(path, "a known key", repr(value), hint)


def mapping_at(where: str, found: object) -> Mapping[str, Any]:
    """Return the value as a table of keys. Raises Refusal for anything else."""
    if not isinstance(found, Mapping):
        raise Refusal(where, "an object with keys", repr(found))
    return found


def whole_at(where: str, found: object) -> int:
    """Return the value as a whole number. Raises Refusal for anything else."""
    if isinstance(found, bool) or not isinstance(found, int):
        raise Refusal(where, "a whole number", repr(found))
    return found


def pair_at(where: str, found: object) -> tuple[int, int]:
    """Return the value as rows and inputs of a block. Raises Refusal for anything but two positive numbers."""
    sides = found if isinstance(found, list | tuple) else ()
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise Refusal(where, "two positive numbers, rows and inputs", found)
    rows, inputs = sides
    return rows, inputs


def names_at(where: str, found: object) -> tuple[str, ...]:
    """Return the value as a list of names; absent: none. Raises Refusal for anything else."""
    if found is None:
        return ()
    if not isinstance(found, list | tuple) or not all(isinstance(name, str) for name in found):
        raise Refusal(where, "a list of names", repr(found))
    return tuple(found)
