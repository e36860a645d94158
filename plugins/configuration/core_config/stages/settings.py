"""The arguments while they are being resolved: user's values, proposals and derived values, each with its reason.

Owns: the rule that a value the user set is never replaced silently. Never does: know what an argument means.
Called by: the other modules of `core_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.errors import PluginError
from core.args.arg import Given
from core.args.schema import schema
from core.plugin.hookspecs import Proposal
from core_config.arguments import foreign
from core_config.arguments.convert import convert
from core_config.arguments.sources import Merged

Row = tuple[Any, str, str]
"""A value, its origin, and the reason for it."""
PREFERENCES = ("attention_backend", "kernels")
"""Arguments for which a platform proposes an order of the suitable plugins rather than a value."""


class Settings:
    """Values by argument name (or `argument.key`).

    rows: values with origins and reasons, as `core config explain` shows them.
    """

    def __init__(self, merged: Merged) -> None:
        self._values = merged.values
        self.rows: dict[str, Row] = {}
        for name, given in self._values.items():
            self.rows[name] = (given.value, given.origin, "")

    def __getitem__(self, name: str) -> Any:
        return self.rows[name][0]

    def beside(self, own: Mapping[str, Any], origin: str) -> Settings:
        """Return the same settings with other values for some names, which count as left open by the user. origin:
        origin of those values.
        """
        values = dict(self._values)
        for name, value in own.items():
            values[name] = Given(value, "default")
        copy = Settings(Merged(values))
        copy.rows |= self.rows
        for name, value in own.items():
            copy.rows[name] = (value, origin, "")
        return copy

    def user_set(self, name: str) -> bool:
        """Whether the user gave `name`, on the command line or in another source."""
        given = self._values.get(name)
        return given is not None and given.origin != "default"

    def given(self) -> dict[str, Any]:
        """Return the user's values, as they were given."""
        values = {}
        for name, given in self._values.items():
            if self.user_set(name):
                values[name] = given.value
        return values

    def values(self) -> dict[str, Any]:
        """Return all values, derived ones included."""
        return {name: value for name, (value, _, _) in self.rows.items()}

    def keys_of(self, name: str) -> dict[str, Any]:
        """Return the derived values of single keys of the mapping `name`."""
        prefix = name + "."
        keys = {}
        for path, (value, _, _) in self.rows.items():
            if path.startswith(prefix):
                keys[path.removeprefix(prefix)] = value
        return keys

    def mapping(self, name: str) -> dict[str, Any]:
        """Return the mapping `name`, with underscores in its keys and derived values for keys that the user left
        open.
        """
        values = underscored(self[name] or {})
        for key, value in self.keys_of(name).items():
            if values.get(key) is None:
                values[key] = value
        return values

    def derive(self, name: str, value: Any, reason: str, *, origin: str = "derived") -> None:
        """Settle a value that the user left open. A set value only gets its spelling made canonical (`half` is
        `float16`).
        """
        if self.user_set(name):
            _, origin, _ = self.rows[name]
        self.rows[name] = (value, origin, reason)

    def replace(self, name: str, value: Any, reason: str) -> None:
        """Replace the value of `name` even if the user set it. The caller must report it."""
        self.rows[name] = (value, "derived", reason)

    def open(self, name: str) -> bool:
        """Whether neither the user nor a rule or platform has settled `name` yet."""
        _, origin, _ = self.rows[name]
        return origin == "default"

    def propose(self, proposals: Mapping[str, Proposal], proposer: str) -> None:
        """Apply a platform's proposals for arguments that are open. Raises PluginError for an impossible one."""
        for name, proposal in proposals.items():
            declared = schema().fields.get(name)
            if declared is None:
                _check_foreign(name, proposal.value, proposer)
                continue
            if not self.open(name) or name in PREFERENCES:
                continue
            try:
                value = convert(declared, proposal.value)
            except ValueError as error:
                raise PluginError(f"{proposer} proposes {name} = {proposal.value!r}: {error}.") from error
            self.derive(name, value, proposal.reason, origin=proposer)


def underscored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with underscores in its keys, which users may write with dashes."""
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def _check_foreign(name: str, value: Any, proposer: str) -> None:
    """Check that a proposal for an undeclared name is neutral. Raises PluginError for any other."""
    row = foreign.named(name)
    if row is None:
        raise PluginError(f"{proposer} proposes '{name}', which is no engine argument.")
    if not row.is_neutral(value):
        raise PluginError(f"{proposer} proposes {name} = {value!r}: {row.sentence}.")
