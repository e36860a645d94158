"""Typed and range-checked access to a GGUF file's metadata.

Owns: the error for a missing or implausible key, and the record of keys that were read. Never does: know an
architecture. Called by: `translate` and `vocabulary`.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from core.api.errors import CheckpointError


class Metadata:
    """The metadata of one file. Every getter raises CheckpointError naming file, key, value and what was expected."""

    def __init__(self, path: str, values: dict[str, Any]) -> None:
        self.path = path
        self.values = values
        self.reads: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def unread(self, namespace: str) -> list[str]:
        """Return the keys of a namespace (`llama.`) that no getter has read."""
        return [key for key in self.values if key.startswith(namespace) and key not in self.reads]

    def _value(self, key: str, default: Any = None) -> Any:
        self.reads.add(key)
        return self.values.get(key, default)

    def fail(self, key: str, expected: str) -> NoReturn:
        """Raise the CheckpointError for a key."""
        if key not in self.values:
            raise CheckpointError(
                f"{self.path}: metadata key '{key}' is missing; expected {expected}. Convert the model again."
            )
        shown = repr(self.values[key])
        if len(shown) > 60:
            shown = shown[:57] + "..."
        raise CheckpointError(
            f"{self.path}: metadata key '{key}' is {shown}, expected {expected}. The file is damaged."
        )

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Read an integer in low..high."""
        value = self._value(key, default)
        # bool is a subclass of int in Python, but a separate type in the file.
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.fail(key, f"an integer from {low} to {high}")
        return value

    def token(self, key: str, vocab_size: int) -> int | None:
        """Read a token id below vocab_size; None when the key is absent."""
        if key not in self:
            return None
        return self.integer(key, 0, vocab_size - 1)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """Read a finite number in low..high."""
        value = self._value(key, default)
        if not isinstance(value, float | int) or not math.isfinite(value) or not low <= value <= high:
            self.fail(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Read a boolean. Raises CheckpointError for another type."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.fail(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Read a string. Raises CheckpointError for another type."""
        value = self._value(key, default)
        if not isinstance(value, str):
            self.fail(key, "a string")
        return value

    def items(self, key: str, kind: type, length: int | None = None, optional: bool = False) -> list[Any]:
        """Read a list of `kind`; of the given length unless None; empty when it is optional and absent."""
        if optional and key not in self:
            return []
        value = self._value(key)
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            self.fail(key, f"a list of {kind.__name__}")
        if length is not None and len(value) != length:
            raise CheckpointError(f"{self.path}: metadata key '{key}' has {len(value)} entries, expected {length}.")
        return value
