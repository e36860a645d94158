"""All arguments in one place: the groups of all installed distributions, flattened to fields.

Owns: `Field`, `Schema`, and finding the groups. Never does: parse, convert, decide.
Called by: parser, sources, help, document, completion, config, and the plugin framework.

An argument is declared when the engine serves it; names that it does not serve are rows of a table
(`core_config.arguments.foreign`).
The group files evaluate their annotations when they are imported (no `from __future__ import annotations`), so that
the schema is built without evaluating text.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import Any, Final

import msgspec

from core.api.errors import PluginError
from core.args.arg import Arg, ArgumentGroup
from core.args.cache import CacheArgs
from core.args.engine import EngineArgs
from core.args.plugins import PluginsArgs
from core.args.scheduler import SchedulerArgs
from core.entry_points import named, offers

OWN_GROUPS: Final[tuple[type[ArgumentGroup], ...]] = (SchedulerArgs, CacheArgs, PluginsArgs, EngineArgs)
"""The groups that the core itself reads."""
OFFERED: Final = "core.arguments"
"""Entry points of this group are further groups: each distribution offers those that it reads, under their keys."""


@dataclass(frozen=True, slots=True)
class Field:
    """One argument, or one key of an argument.

    base:     its type without None (also `list[str]` and `dict[str, Any]`).
    keys:     the only keys of a mapping, by name; empty for any key.
    declared: whether the engine serves it; an undeclared argument's value is kept as written.
    """

    name: str
    group: str
    base: Any
    optional: bool
    arg: Arg
    raw_default: Any
    keys: Mapping[str, Field]
    declared: bool = True

    @property
    def flag(self) -> str:
        """The long flag on the command line, such as `--max-model-len`."""
        return flag_of(self.name)

    @property
    def flags(self) -> tuple[str, ...]:
        """Every flag of the argument, short ones last."""
        long = [flag_of(name) for name in (self.name, *self.arg.aliases)]
        short = ["-" + name for name in self.arg.short]
        return (*long, *short)

    @property
    def default(self) -> Any:
        """The declared default; a list or a mapping is copied, so that a caller may change it."""
        value = self.raw_default
        return type(value)(value) if isinstance(value, (list, dict)) else value

    @property
    def is_list(self) -> bool:
        """Whether the argument's value is a list."""
        return typing.get_origin(self.base) is list

    @property
    def item(self) -> type:
        """The type of a list's items: `str`, or `int`."""
        (item,) = typing.get_args(self.base)
        return item if isinstance(item, type) else str

    @property
    def is_mapping(self) -> bool:
        """Whether the value is a mapping, so that dotted keys are allowed."""
        return typing.get_origin(self.base) is dict or not self.declared


@dataclass(frozen=True, slots=True)
class Schema:
    """All arguments; immutable, one per process.

    fields: by name, in the order of declaration.
    titles: of the groups.
    server_groups: keys of the groups that an HTTP server alone reads.
    names:  fields by name and alias.
    shorts: fields by short name, without its dash.
    """

    fields: Mapping[str, Field]
    titles: Mapping[str, str]
    names: Mapping[str, Field]
    shorts: Mapping[str, Field]
    server_groups: frozenset[str]

    def named(self, name: str) -> Field | None:
        """Return the field with the name or alias `name`, written with dashes or underscores."""
        return self.names.get(name.replace("-", "_"))

    def short(self, name: str) -> Field | None:
        """Return the field with the short name `name` (without its dash)."""
        return self.shorts.get(name)

    def flags(self) -> list[str]:
        """Return all long flags, including `--no-...` for switches."""
        found: list[str] = []
        for field in self.fields.values():
            found += [flag for flag in field.flags if flag.startswith("--")]
            if field.base is bool:
                found.append("--no-" + field.flag[2:])
        return found


@functools.cache
def schema() -> Schema:
    """The schema of all engine and server arguments. Raises PluginError for a group that cannot be used."""
    fields: dict[str, Field] = {}
    titles: dict[str, str] = {}
    server_groups: set[str] = set()
    for group, source in _groups():
        key = group_key(group.__name__)
        title = inspect.getdoc(group) or key
        titles[key] = title.splitlines()[0].rstrip(".")
        own = fields_of(group, key)
        for name in own.keys() & fields.keys():
            raise PluginError(
                f"{source} declares the argument '{name}', which the group '{fields[name].group}' declares too; uninstall or "
                "update one of the distributions that offer them."
            )
        fields |= own
        if group.for_servers:
            server_groups.add(key)
    names: dict[str, Field] = {}
    shorts: dict[str, Field] = {}
    for field in fields.values():
        names |= dict.fromkeys((field.name, *field.arg.aliases), field)
        shorts |= dict.fromkeys(field.arg.short, field)
    return Schema(
        MappingProxyType(fields),
        MappingProxyType(titles),
        MappingProxyType(names),
        MappingProxyType(shorts),
        frozenset(server_groups),
    )


def _groups() -> list[tuple[type[ArgumentGroup], str]]:
    """All groups in the order of their places, each with the distribution that offers it."""
    found: list[tuple[type[ArgumentGroup], str]] = [(group, "core-engine") for group in OWN_GROUPS]
    for offer in offers(OFFERED):
        try:
            group = named(offer.target)
            if not (isinstance(group, type) and issubclass(group, ArgumentGroup)):
                raise TypeError(f"{offer.target} is no group of arguments")
            found.append((group, offer.distribution))
        except Exception as error:
            raise PluginError(
                f"The arguments '{offer.name}' of {offer.distribution} cannot be used ({type(error).__name__}: {error}); "
                "install the version that belongs to this engine, or uninstall it."
            ) from error
    return sorted(found, key=lambda each: (each[0].place, each[0].__name__))


def flag_of(name: str) -> str:
    """Return the flag of a name: `--max-num-seqs`, or for the path of a key `--kv-events-config.buffer_steps`."""
    head, dot, path = name.partition(".")
    return "--" + head.replace("_", "-") + dot + path


def group_key(name: str) -> str:
    """Return the group that a name means: `scheduler` for `SchedulerArgs`; `model` for `ModelConfig` and `model`."""
    stem = re.sub(r"(?i)_?(args|config)$", "", name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stem).lower()


def fields_of(struct: type[msgspec.Struct], group: str) -> dict[str, Field]:
    """Return the fields, by name, of a Struct with annotations `Annotated[type, Arg(...)]`, including those of its bases."""
    annotations: dict[str, Any] = {}
    for base in reversed(struct.__mro__):
        annotations |= inspect.get_annotations(base)
    found: dict[str, Field] = {}
    for info in msgspec.structs.fields(struct):
        inner, arg = typing.get_args(annotations[info.name])
        members = typing.get_args(inner)
        optional = NoneType in members
        plain = next(member for member in members if member is not NoneType) if optional else inner
        default = info.default if info.default is not msgspec.NODEFAULT else info.default_factory()
        keys = fields_of(arg.keys, group) if arg.keys is not None else {}
        found[info.name] = Field(info.name, group, plain, optional, arg, default, MappingProxyType(keys))
    return found
