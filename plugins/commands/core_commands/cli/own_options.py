"""A command's own options: declared like engine arguments, and removed from its words before those are parsed.

Owns: the parsing, and the help about the options. Never does: know an option. Called by: the commands that have many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from core.api.errors import ConfigError, nearest
from core.args.schema import Field, fields_of
from core.args.show import Section
from core_config.arguments.convert import convert, describe
from core_config.arguments.help import left, right

T = TypeVar("T", bound=msgspec.Struct)
GROUP = "command"


def take_options(struct: type[T], words: list[str]) -> T:
    """Remove the options that `struct` declares from `words`, and return their values. Other words remain.

    struct: has fields `Annotated[type, Arg(...)]`; lists take all words up to the next flag. Raises ConfigError with
    every problem.
    """
    spellings = _spellings(struct)
    values: dict[str, Any] = {}
    problems: list[str] = []
    rest: list[str] = []
    while words:
        word = words.pop(0)
        if word == "--":
            rest += [word, *words]
            break
        name, equals, text = word.partition("=")
        key = name.replace("_", "-") if name.startswith("--") else name
        field = spellings.get(key)
        if field is None:
            rest.append(word)
            continue
        given: Any = text if equals else _given(field, key, words)
        try:
            if given is None:
                raise ValueError(f"a value is missing; expected {describe(field)}")
            values[field.name] = convert(field, given)
        except ValueError as error:
            shown = name if given is None or isinstance(given, bool) else f"{name} {given}"
            problems.append(f"{shown}: {str(error).rstrip('.')}.")
    words[:] = rest
    if problems:
        raise ConfigError(problems)
    return struct(**values)


def refuse_rest(
    command: str, words: Sequence[str], struct: type[msgspec.Struct], reasons: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise ConfigError for words that no option has consumed. reasons: why known flags are rejected, by flag."""
    flags = own_flags(struct)
    problems: list[str] = []
    known_before = False
    for word in words:
        name = word.partition("=")[0]
        if name in reasons:
            problems.append(f"{name}: not here: {reasons[name]}.")
        elif known_before and not word.startswith("-"):
            continue  # the flag's value
        elif word.startswith("-"):
            problems.append(f"{name}: unknown argument.{nearest(name, flags)} See core {command} --help.")
        else:
            problems.append(f"'{word}': unexpected; see core {command} --help.")
        known_before = name in reasons
    if problems:
        raise ConfigError(problems)


def option_section(title: str, struct: type[msgspec.Struct]) -> Section:
    """Return the help section for the options of `struct`."""
    rows = [(left(field), right(field)) for field in own_fields(struct)]
    return Section(title, tuple(rows))


def own_flags(struct: type[msgspec.Struct]) -> list[str]:
    """Return every flag of `struct`, for hints."""
    return list(_spellings(struct))


def own_fields(struct: type[msgspec.Struct]) -> list[Field]:
    """Return the options of `struct`."""
    return list(fields_of(struct, GROUP).values())


def _spellings(struct: type[msgspec.Struct]) -> Mapping[str, Field]:
    """Return the fields of `struct` by every flag, including `--no-...` for switches."""
    found: dict[str, Field] = {}
    for field in own_fields(struct):
        found |= dict.fromkeys(field.flags, field)
        if field.base is bool:
            found["--no-" + field.flag[2:]] = field
    return found


def _given(field: Field, flag: str, words: list[str]) -> Any:
    """Return the value after a flag; None when there is none."""
    if field.base is bool:
        return not flag.startswith("--no-")
    if not field.is_list:
        is_value = bool(words) and (not words[0].startswith("-") or _is_number(words[0]) or words[0] == "-")
        return words.pop(0) if is_value else field.arg.bare
    found: list[str] = []
    while words and not words[0].startswith("-"):
        found.append(words.pop(0))
    return found or None


def _is_number(word: str) -> bool:
    return word[1:2].isdigit()
