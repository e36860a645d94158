"""The schema of all arguments: the list of groups, flattened to fields.

Owns: `Field`, `Schema` and the order of groups. Never does: parse, convert, decide.
Called by: parser, sources, help, document, completion, config, and the plugin framework.

An argument is declared when the engine serves it; names that it does not serve are rows of a table (`core.args.foreign`).
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
from typing import Any

import msgspec

from core.args.answers import AnswersArgs
from core.args.arg import Arg
from core.args.attention import AttentionArgs
from core.args.cache import CacheArgs
from core.args.compilation import CompilationArgs
from core.args.engine import EngineArgs
from core.args.frontend import FrontendArgs
from core.args.journal import JournalArgs
from core.args.kernel import KernelArgs
from core.args.limits import LimitsArgs
from core.args.load import LoadArgs
from core.args.model import ModelArgs
from core.args.observe import ObserveArgs
from core.args.plugins import PluginsArgs
from core.args.pooling import PoolingArgs
from core.args.remote import RemoteArgs
from core.args.scheduler import SchedulerArgs
from core.args.speculative import SpeculativeArgs
from core.args.structured_outputs import StructuredOutputsArgs

GROUPS: tuple[type[msgspec.Struct], ...] = (
    ModelArgs,
    PoolingArgs,
    LoadArgs,
    CacheArgs,
    SchedulerArgs,
    AttentionArgs,
    KernelArgs,
    CompilationArgs,
    SpeculativeArgs,
    StructuredOutputsArgs,
    PluginsArgs,
    EngineArgs,
    ObserveArgs,
    FrontendArgs,
    AnswersArgs,
    LimitsArgs,
    JournalArgs,
    RemoteArgs,
)


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

    fields: fields by name, in the order of declaration.
    titles: titles of the groups, by group.
    names:  fields by name and alias.
    shorts: fields by short name, without its dash.
    """

    fields: Mapping[str, Field]
    titles: Mapping[str, str]
    names: Mapping[str, Field]
    shorts: Mapping[str, Field]

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
    """Return the schema of all engine and server arguments, which is built once per process."""
    fields: dict[str, Field] = {}
    titles: dict[str, str] = {}
    for group in GROUPS:
        key = group_key(group.__name__)
        title = inspect.getdoc(group) or key
        titles[key] = title.splitlines()[0].rstrip(".")
        fields |= fields_of(group, key)
    names: dict[str, Field] = {}
    shorts: dict[str, Field] = {}
    for field in fields.values():
        names |= dict.fromkeys((field.name, *field.arg.aliases), field)
        shorts |= dict.fromkeys(field.arg.short, field)
    return Schema(MappingProxyType(fields), MappingProxyType(titles), MappingProxyType(names), MappingProxyType(shorts))


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
