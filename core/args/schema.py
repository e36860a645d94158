"""All arguments in one place: the list of groups, flattened to fields.

Owns: `Field`, `Schema` and the order of groups. Never does: parse, convert, decide.
Called by: parser, sources, help, config, and the reference documentation.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import Any

import msgspec

from core.args.arg import Arg
from core.args.cache import CacheArgs
from core.args.device import DeviceArgs
from core.args.frontend import FrontendArgs
from core.args.load import LoadArgs
from core.args.model import ModelArgs
from core.args.observability import ObservabilityArgs
from core.args.plugins import PluginArgs
from core.args.scheduler import SchedulerArgs
from core.args.speculative import SpeculativeArgs

GROUPS: tuple[type[msgspec.Struct], ...] = (
    ModelArgs,
    LoadArgs,
    CacheArgs,
    SchedulerArgs,
    DeviceArgs,
    SpeculativeArgs,
    PluginArgs,
    ObservabilityArgs,
    FrontendArgs,
)


@dataclass(frozen=True, slots=True)
class Field:
    """One argument. base: the type without None (`list[str]` and `dict[str, Any]` included). default: a fresh value."""

    name: str
    group: str
    base: Any
    optional: bool
    arg: Arg
    raw_default: Any

    @property
    def flag(self) -> str:
        """`--max-model-len`."""
        return "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        """Every spelling, short ones last."""
        long = tuple("--" + alias.replace("_", "-") for alias in self.arg.aliases)
        return (self.flag, *long, *("-" + short for short in self.arg.short))

    @property
    def default(self) -> Any:
        """The declared default."""
        value = self.raw_default
        return type(value)(value) if isinstance(value, (list, dict)) else value

    @property
    def is_list(self) -> bool:
        """Whether the value is a list."""
        return typing.get_origin(self.base) is list

    @property
    def is_mapping(self) -> bool:
        """Whether the value is a mapping, so that dotted keys are allowed."""
        return typing.get_origin(self.base) is dict


@dataclass(frozen=True, slots=True)
class Schema:
    """Fields by name in the order of declaration, and group titles by group."""

    fields: Mapping[str, Field]
    titles: Mapping[str, str]

    def named(self, name: str) -> Field | None:
        """The field called `name`, with dashes or underscores, by its name or an alias."""
        wanted = name.replace("-", "_")
        if wanted in self.fields:
            return self.fields[wanted]
        return next((f for f in self.fields.values() if wanted in {a.replace("-", "_") for a in f.arg.aliases}), None)

    def short(self, name: str) -> Field | None:
        """The field with the short spelling `name` (without its dash)."""
        return next((f for f in self.fields.values() if name in f.arg.short), None)

    def flags(self) -> list[str]:
        """All long flags, `--no-...` of switches included."""
        found: list[str] = []
        for field in self.fields.values():
            found += [flag for flag in field.flags if flag.startswith("--")]
            if field.base is bool:
                found.append("--no-" + field.flag[2:])
        return found


@functools.cache
def schema() -> Schema:
    """The schema of all engine and server arguments."""
    fields: dict[str, Field] = {}
    titles: dict[str, str] = {}
    for group in GROUPS:
        key = group.__name__.removesuffix("Args").lower()
        titles[key] = (inspect.getdoc(group) or key).splitlines()[0].rstrip(".")
        hints = typing.get_type_hints(group, include_extras=True)
        for info in msgspec.structs.fields(group):
            fields[info.name] = _field(info, key, hints[info.name])
    return Schema(MappingProxyType(fields), MappingProxyType(titles))


def _field(info: msgspec.structs.FieldInfo, group: str, hint: Any) -> Field:
    """One field from its annotation `Annotated[type, Arg(...)]`."""
    inner, arg = typing.get_args(hint)
    members = typing.get_args(inner) if NoneType in typing.get_args(inner) else (inner,)
    (base,) = (member for member in members if member is not NoneType)
    default = info.default if info.default is not msgspec.NODEFAULT else info.default_factory()
    return Field(info.name, group, base, NoneType in members, arg, default)
