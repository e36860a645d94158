"""All arguments in one place: the list of groups, flattened to fields.

Owns: `Field`, `Schema` and the order of groups. Never does: parse, convert, decide.
Called by: parser, sources, help, document, completion, config, and the plugin framework.

The group files evaluate their annotations when they are imported (no `from __future__ import annotations`), so that
the schema is built without evaluating text.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType, NoneType
from typing import Any

import msgspec

from core.args.arg import Arg
from core.args.async_engine import AsyncEngineArgs
from core.args.attention import AttentionArgs
from core.args.cache import CacheArgs
from core.args.compilation import CompilationArgs
from core.args.engine import EngineArgs
from core.args.frontend import FrontendArgs
from core.args.instance import InstanceArgs
from core.args.kernel import KernelArgs
from core.args.limits import LimitsArgs
from core.args.load import LoadArgs
from core.args.lora import LoraArgs
from core.args.model import ModelArgs
from core.args.multimodal import MultimodalArgs
from core.args.observability import ObservabilityArgs
from core.args.offload import OffloadArgs
from core.args.parallel import ParallelArgs
from core.args.plugins import PluginsArgs
from core.args.retired import RETIRED, Retired
from core.args.scheduler import SchedulerArgs
from core.args.speculative import SpeculativeArgs
from core.args.structured_outputs import StructuredOutputsArgs

GROUPS: tuple[type[msgspec.Struct], ...] = (
    ModelArgs,
    LoadArgs,
    CacheArgs,
    OffloadArgs,
    SchedulerArgs,
    ParallelArgs,
    AttentionArgs,
    KernelArgs,
    CompilationArgs,
    SpeculativeArgs,
    StructuredOutputsArgs,
    LoraArgs,
    MultimodalArgs,
    PluginsArgs,
    InstanceArgs,
    EngineArgs,
    ObservabilityArgs,
    AsyncEngineArgs,
    FrontendArgs,
    LimitsArgs,
)


@dataclass(frozen=True, slots=True)
class Field:
    """One argument, or one key of an argument.

    base: the type without None (`list[str]` and `dict[str, Any]` included). keys: the only keys of a mapping, by name;
    empty for any key.
    """

    name: str
    group: str
    base: Any
    optional: bool
    arg: Arg
    raw_default: Any
    keys: Mapping[str, Field]

    @property
    def flag(self) -> str:
        """`--max-model-len`."""
        return "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        """Every spelling, short ones last; none for an internal argument."""
        if self.arg.internal:
            return ()
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

    @property
    def is_served(self) -> bool:
        """Whether any value but the default can be set today."""
        served = self.arg.served
        return served is None or any(value != self.raw_default for value in served)


@dataclass(frozen=True, slots=True)
class Schema:
    """Fields by name in the order of declaration; group titles by group; retired arguments; all spellings."""

    fields: Mapping[str, Field]
    titles: Mapping[str, str]
    retired: Mapping[str, Retired]
    names: Mapping[str, Field]
    shorts: Mapping[str, Field]

    def named(self, name: str) -> Field | None:
        """The field called `name`, with dashes or underscores, by its name or an alias."""
        return self.names.get(name.replace("-", "_"))

    def short(self, name: str) -> Field | None:
        """The field with the short spelling `name` (without its dash)."""
        return self.shorts.get(name)

    def gone(self, name: str) -> Retired | None:
        """The retired argument called `name`."""
        return self.retired.get(name.replace("-", "_"))

    def flags(self) -> list[str]:
        """All long flags, `--no-...` of switches included."""
        found: list[str] = []
        for field in self.fields.values():
            found += [flag for flag in field.flags if flag.startswith("--")]
            if field.base is bool and field.flags:
                found.append("--no-" + field.flag[2:])
        return found


@functools.cache
def schema() -> Schema:
    """The schema of all engine and server arguments."""
    fields: dict[str, Field] = {}
    titles: dict[str, str] = {}
    for group in GROUPS:
        key = group_key(group.__name__)
        titles[key] = (inspect.getdoc(group) or key).splitlines()[0].rstrip(".")
        fields |= fields_of(group, key)
    names = {alias.replace("-", "_"): field for field in fields.values() for alias in (field.name, *field.arg.aliases)}
    shorts = {short: field for field in fields.values() for short in field.arg.short}
    retired = {entry.name: entry for entry in RETIRED}
    return Schema(
        MappingProxyType(fields),
        MappingProxyType(titles),
        MappingProxyType(retired),
        MappingProxyType(names),
        MappingProxyType(shorts),
    )


def group_key(name: str) -> str:
    """`structured_outputs` for `StructuredOutputsArgs`; `model` for `ModelConfig` and `model`."""
    stem = re.sub(r"(?i)_?(args|config)$", "", name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stem).lower()


def fields_of(struct: type[msgspec.Struct], group: str, parent: Arg | None = None) -> dict[str, Field]:
    """The fields of a Struct whose annotations are `Annotated[type, Arg(...)]`, by name.

    parent: the argument whose keys these are; keys that do not say why they are not served inherit it.
    """
    found: dict[str, Field] = {}
    for info in msgspec.structs.fields(struct):
        inner, arg = typing.get_args(struct.__annotations__[info.name])
        members = typing.get_args(inner) if NoneType in typing.get_args(inner) else (inner,)
        (base,) = (member for member in members if member is not NoneType)
        default = info.default if info.default is not msgspec.NODEFAULT else info.default_factory()
        if parent is not None and parent.unserved and not arg.unserved:
            arg = replace(arg, unserved=parent.unserved)
        keys = fields_of(arg.keys, group, arg) if arg.keys is not None else {}
        if arg.unserved and arg.served is None and not keys:
            arg = replace(arg, served=(default,))
        found[info.name] = Field(info.name, group, base, NoneType in members, arg, default, MappingProxyType(keys))
    return found
