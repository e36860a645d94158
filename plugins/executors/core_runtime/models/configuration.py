"""A checkpoint's configuration under usual names, with a record of the keys that were read. Torch-free.

Owns: the order of sources of a value, the checks of values that every family needs, and the record of keys that were
read. Never does: know a family. Called by: `core_runtime.models.families` and its parts; `core_runtime.models.unread`
asks for the record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from core.api.errors import UserError, nearest
from core_runtime.models.bounds import BOUNDS, LARGEST

T = TypeVar("T")


class KeyProblem(UserError):
    """A value of a configuration is impossible. key: the key, with the path to it."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class Configuration(Mapping[str, Any]):
    """A mapping of usual names. A key that the checkpoint lacks has the default of the family.

    values: the checkpoint's values.
    defaults: the family's defaults, under usual or own names.
    own_names: usual name → the names that the family's checkpoints have for it; callers may use any of them. Where a
        checkpoint has several of them, the usual name wins, then the first of these.
    known: the keys that the family has. Other keys count as absent and stay unread. None: the family may have any key.
    prefix: path of this mapping in the whole configuration, such as `rope_scaling.`; empty: this is the whole
        configuration.

    Every accessor raises UserError naming key, value, what was expected and `--hf-overrides`; an absent key without any
    default is an error, too. A `null` counts as absent for the `default` that an accessor is given, but it hides the
    default of the family, as it does in transformers.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        own_names: Mapping[str, Sequence[str]] | None = None,
        known: frozenset[str] | None = None,
        prefix: str = "",
        reads: set[str] | None = None,
    ) -> None:
        self.values_given = values
        self.defaults = defaults or {}
        self.own_names = own_names or {}
        self.known = known
        self.prefix = prefix
        self.reads: set[str] = set() if reads is None else reads

    def __getitem__(self, key: str) -> Any:
        names = self._names(key)
        present = [name for name in names if self._has(name)]
        self.reads.update(self.prefix + name for name in present)
        if present:
            return self._handed_out(present[0], self.values_given[present[0]])
        for name in names:
            if name in self.defaults:
                return self.defaults[name]
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        """Whether the checkpoint has the key. The check does not count as a read."""
        return any(self._has(name) for name in self._names(str(key)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_given)

    def __len__(self) -> int:
        return len(self.values_given)

    def overlaid(self, values: Mapping[str, Any]) -> Configuration:
        """Return this configuration with other values for some keys. Both share one record of keys read."""
        mixed = {**self.values_given, **values}
        known = None if self.known is None else self.known.union(values)
        return Configuration(mixed, self.defaults, self.own_names, known, self.prefix, self.reads)

    def positive(self, name: str, default: int | None = None) -> int:
        """Return an integer from 1 to the bound of its name (`BOUNDS`)."""
        return self._integer(name, default, 1)

    def count(self, name: str, default: int | None = None) -> int:
        """Return an integer from 0 to the bound of its name (`BOUNDS`)."""
        return self._integer(name, default, 0)

    def number(self, name: str, default: float | None = None, low: float = -1e30, high: float = 1e30) -> float:
        """Return a finite number in low..high."""
        value = self._value(name, default)
        self._check_number(name, value, low, high)
        return float(value)

    def optional_number(self, name: str, low: float = -1e30, high: float = 1e30) -> float | None:
        """Return a finite number in low..high, or None where the key is absent."""
        value = self.get(name)
        if value is None:
            return None
        self._check_number(name, value, low, high)
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean. Raises UserError for 0, 1 and strings."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            self.fail(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string, the empty one included."""
        value = self._value(name, default)
        if not isinstance(value, str):
            self.fail(name, value, "a string")
        return value

    def choice(self, name: str, known: Mapping[str, T], default: str | None = None) -> T:
        """Return the entry of `known` for the key's value, a string."""
        value = self.text(name, default)
        if value not in known:
            self.fail(name, value, f"one of {', '.join(known)}", nearest(value, known))
        return known[value]

    def list_of(self, name: str, kind: type[T], length: int | None = None) -> list[T]:
        """Return a list whose items are of type `kind`, checked for `length` if one is given; empty when the key is
        absent.
        """
        value = self.get(name)
        if value is None:
            return []
        counted = isinstance(value, list | tuple)
        if not counted or any(not _is(item, kind) for item in value):
            self.fail(name, value, f"a list of {kind.__name__}")
        if length is not None and len(value) != length:
            self.fail(name, value, f"{length} items, not {len(value)}")
        return list(value)

    def mapping(self, name: str) -> Configuration:
        """Return a nested mapping that shares this record of keys read; empty when the key is absent."""
        value = self.get(name)
        if value is None:
            return Configuration({}, prefix=f"{self.prefix}{name}.", reads=self.reads)
        if not isinstance(value, Mapping):
            self.fail(name, value, "a mapping")
        if isinstance(value, Configuration):
            return value
        return Configuration(value, prefix=f"{self.prefix}{name}.", reads=self.reads)

    def fail(self, name: str, value: Any, expected: str, hint: str = "") -> NoReturn:
        """Raise the UserError for a value. hint: a sentence with a space before it."""
        shown = repr(value)
        if len(shown) > 60:
            shown = shown[:57] + "..."
        present = [own for own in self._names(name) if own in self.values_given]
        key = self.prefix + (present[0] if present else name)
        raise KeyProblem(
            key,
            f"{key} is {shown} in the model's configuration; expected {expected}.{hint} Set it with --hf-overrides.{key}.",
        )

    def _names(self, key: str) -> tuple[str, ...]:
        """Return all names of a key in order of precedence; none for a key that the family does not have."""
        names = (key, *self.own_names.get(key, ()))
        for usual, own in self.own_names.items():
            if key in own:
                names = (usual, *own)
        if self.known is None or not self.known.isdisjoint(names):
            return names
        return ()

    def _has(self, name: str) -> bool:
        """Whether both the checkpoint and the family have a key by this exact name."""
        return name in self.values_given and (self.known is None or name in self.known)

    def _handed_out(self, name: str, value: Any) -> Any:
        if not isinstance(value, Mapping) or isinstance(value, Configuration):
            return value
        return Configuration(value, prefix=f"{self.prefix}{name}.", reads=self.reads)

    def _value(self, name: str, default: Any) -> Any:
        value = self.get(name)
        return default if value is None else value

    def _integer(self, name: str, default: int | None, least: int) -> int:
        value = self._value(name, default)
        if not _is(value, int) or value < least:
            self.fail(name, value, "a positive integer" if least else "an integer from 0")
        most = BOUNDS.get(name, LARGEST)
        if value > most:
            self.fail(name, value, f"at most {most}")
        return int(value)

    def _check_number(self, name: str, value: Any, low: float, high: float) -> None:
        unusual = isinstance(value, float) and not math.isfinite(value)
        if not _is(value, float) or unusual:
            self.fail(name, value, "a finite number")
        if not low <= value <= high:
            self.fail(name, value, f"a number from {low:g} to {high:g}")


def configuration(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the mapping as a `Configuration`; one that already is a `Configuration` is returned unchanged."""
    return hf_config if isinstance(hf_config, Configuration) else Configuration(hf_config)


def positive(hf_config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return an integer of at least 1. Raises UserError."""
    return configuration(hf_config).positive(name, default)


def _is(value: Any, kind: type) -> bool:
    """Whether a JSON value is of a type. A boolean is not a number; an integer also counts as a float."""
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, float | int)
    return isinstance(value, kind)
