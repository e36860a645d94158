"""Engine arguments as one object: `EngineArgs(model=...)`, from a command line, or as keywords of `LLM(...)`.

Owns: `EngineArgs` and `AsyncEngineArgs`, made from the schema of arguments. Never does: check or resolve a value, which
`LLM` and the engines do. Called by: users.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any, Self

from core.api.errors import nearest
from core.args.schema import Field, schema
from core_config.arguments import foreign
from core_config.arguments.convert import convert
from core_config.arguments.plain import loose
from core_config.arguments.reach import IN_ENGINE_ARGS, is_for_servers

SERVERS_TOPIC = "Server"
"""The heading of the server arguments in the table of foreign names."""


def _arguments() -> dict[str, Field]:
    """Return every argument of an engine, including unsupported ones, so that their neutral values can be given."""
    found: dict[str, Field] = {}
    for field in schema().fields.values():
        if not is_for_servers(field) or field.name in IN_ENGINE_ARGS:
            found[field.name] = field
    for row in foreign.names():
        is_known = bool(row.neutral) and not row.name.startswith("_") and row.topic != SERVERS_TOPIC
        if is_known:
            found.setdefault(row.name, row.field)
    return found


class _Arguments:
    """The methods of both classes."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Make an object. Raises TypeError for an unknown name, with the nearest known one."""
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in given:
            if name not in known:
                raise TypeError(f"{cls.__name__} has no argument '{name}'.{nearest(name, known)}")
        return super().__new__(cls)

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add all arguments to a parser, argparse's or a `FlexibleArgumentParser`, and return it. Defaults leave them
        unset.

        A flag that the parser already has is left as it is.
        """
        taken = parser._option_string_actions
        for field in _arguments().values():
            flags = [flag for flag in field.flags if flag not in taken]
            if field.flag in flags:
                parser.add_argument(*flags, dest=field.name, default=_default(field), **_options(field))
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Make an object from the arguments in a parsed command line."""
        if not isinstance(args, argparse.Namespace):
            raise TypeError(f"args is a {type(args).__name__}; expected what parse_args returns.")
        values = vars(args)
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: values[name] for name in known if name in values})

    @property
    def given(self) -> dict[str, Any]:
        """Return the arguments that differ from their defaults."""
        defaults = type(self)()
        changed: dict[str, Any] = {}
        for name, value in vars(self).items():
            if value != getattr(defaults, name):
                changed[name] = value
        return changed


def _default(field: Field) -> Any:
    """Return the default of an argument: None, unless None is itself a meaningful value."""
    if field.declared:
        return field.default if field.optional else None
    value = foreign.WithNeutral()[field.name]
    return value if isinstance(value, str | int | float) else None


def _options(field: Field) -> dict[str, Any]:
    """Return argparse's options for an argument besides its name."""
    text = (field.arg.help if field.declared else "Not served yet.").replace("%", "%%")
    if field.base is bool:
        return {"action": argparse.BooleanOptionalAction, "help": text}
    options: dict[str, Any] = {"type": _reader(field), "help": text}
    if field.is_list:
        options |= {"nargs": "+", "type": str}
    elif field.arg.bare is not None:
        options |= {"nargs": "?", "const": field.arg.bare}
    return options


def _reader(field: Field) -> Callable[[str], Any]:
    """Return a function that reads the text of a value."""
    if not field.declared:
        return loose

    def read(text: str) -> Any:
        try:
            return convert(field, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _make(name: str, text: str) -> type[Any]:
    """Make a dataclass with all arguments, each with the default that leaves it unset."""
    fields: list[tuple[str, Any, Any]] = []
    for argument, field in _arguments().items():
        default = dataclasses.field(default=_default(field))
        fields.append((argument, Any, default))
    namespace = {"__doc__": text, "__module__": __name__}
    return dataclasses.make_dataclass(name, fields, bases=(_Arguments,), namespace=namespace)


_TEXT = """Arguments of an engine, each under its command-line name with underscores. None leaves one unset; names that the
engine does not serve have a value that asks for nothing.

`dataclasses.asdict` of it, or `given`, are keywords of `LLM(...)`. A name that there is not raises TypeError.
"""

EngineArgs = _make("EngineArgs", _TEXT)
AsyncEngineArgs = _make("AsyncEngineArgs", _TEXT)
