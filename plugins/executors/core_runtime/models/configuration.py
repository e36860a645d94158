"""A checkpoint's configuration under usual names, which remembers what was read of it. Torch-free.

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
    """A value of a configuration that cannot be. key: with the path to it."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class Configuration(Mapping[str, Any]):
    """A mapping of usual names. A key that the checkpoint lacks has the default of the family.

    values: of the checkpoint.
    defaults: of the family, under usual or own names.
    own_names: usual name → the names that the family's checkpoints have for it; any of them may be asked for. Where a
        checkpoint has several of them, the usual name counts, then the first of these.
    known: the keys that the family has; others are as if absent, and stay unread. None: it may have any.
    prefix: where this mapping stands in the whole configuration, as `rope_scaling.`; empty: it is the whole one.

    Every accessor raises UserError naming key, value, what was expected and `--hf-overrides`; an absent key without any
    default is an error, too. A `null` counts as absent for the `default` that an accessor is given, but it hides the default
    of the family, as it does in transformers.
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
        """Whether the checkpoint has the key; looking is not reading."""
        return any(self._has(name) for name in self._names(str(key)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_given)

    def __len__(self) -> int:
        return len(self.values_given)

    def overlaid(self, values: Mapping[str, Any]) -> Configuration:
        """This configuration with other values for some keys; what is read of either is remembered for both."""
        mixed = {**self.values_given, **values}
        known = None if self.known is None else self.known.union(values)
        return Configuration(mixed, self.defaults, self.own_names, known, self.prefix, self.reads)

    def positive(self, name: str, default: int | None = None) -> int:
        """An integer from 1 to the bound of its name."""
        return self._integer(name, default, 1)

    def count(self, name: str, default: int | None = None) -> int:
        """An integer from 0 to the bound of its name."""
        return self._integer(name, default, 0)

    def number(self, name: str, default: float | None = None, low: float = -1e30, high: float = 1e30) -> float:
        """A finite number in low..high."""
        value = self._value(name, default)
        self._check_number(name, value, low, high)
        return float(value)

    def optional_number(self, name: str, low: float = -1e30, high: float = 1e30) -> float | None:
        """A finite number in low..high, None without one."""
        value = self.get(name)
        if value is None:
            return None
        self._check_number(name, value, low, high)
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            self.fail(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            self.fail(name, value, "a string")
        return value

    def choice(self, name: str, known: Mapping[str, T], default: str | None = None) -> T:
        """What `known` says for a string that it has."""
        value = self.text(name, default)
        if value not in known:
            self.fail(name, value, f"one of {', '.join(known)}", nearest(value, known))
        return known[value]

    def list_of(self, name: str, kind: type[T], length: int | None = None) -> list[T]:
        """A list of `kind`, of a length if one is given; empty when absent."""
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
        """A nested mapping, which remembers what is read of it; empty when absent."""
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
        """All names of a key, the one that counts most first; none of a key that the family has not."""
        names = (key, *self.own_names.get(key, ()))
        for usual, own in self.own_names.items():
            if key in own:
                names = (usual, *own)
        if self.known is None or not self.known.isdisjoint(names):
            return names
        return ()

    def _has(self, name: str) -> bool:
        """Whether the checkpoint has a key by this very name, and the family, too."""
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
    """A mapping with the accessors of a configuration; one that has them is itself."""
    return hf_config if isinstance(hf_config, Configuration) else Configuration(hf_config)


def positive(hf_config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """An integer from 1. Raises UserError."""
    return configuration(hf_config).positive(name, default)


def _is(value: Any, kind: type) -> bool:
    """Whether a value of JSON is of a kind: a truth value is no number, an integer is a number, too."""
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, float | int)
    return isinstance(value, kind)
