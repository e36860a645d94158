"""The declaration of one argument, beyond its type and default.

Owns: `Arg` (an annotation), `ArgumentGroup` (the base of the groups), `Given` (a value with its origin). Never does: parse or
convert.
Called by: the group files (they annotate with `Arg`), schema, parser, sources, help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

HIDDEN = "***"  # what is shown in place of a secret


@dataclass(frozen=True, slots=True)
class Arg:
    """Annotation of a field: `port: Annotated[int, Arg("Port to listen on.", ge=0, le=65535)] = 8000`.

    help:     one or two sentences.
    choices:  allowed values (of each item, for a list), empty for any.
    ge, gt, le: limits of a number.
    aliases:  other long names.
    short:    spellings with one dash, without it.
    human:    an integer that may be written `25.6k` (1000) or `1K` (1024).
    words:    {word: value} accepted in place of a value, such as {"auto": -1}.
    bare:     the word that a flag without a value stands for; None: a value is needed.
    commas:   a list that may also be written `a,b`.
    keys:     a Struct whose annotated fields are the only keys of a mapping; None: any key.
    plugin:   the kind of plugin that this argument names, for help and errors.
    secret:   never shown: not in warnings, problems, or what `core config` prints.
    metavar:  what help calls the value.
    since:    the first version that has it.
    """

    help: str
    choices: tuple[Any, ...] = ()
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    aliases: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    human: bool = False
    words: tuple[tuple[str, Any], ...] = ()
    bare: str | None = None
    commas: bool = False
    keys: type[msgspec.Struct] | None = None
    plugin: str | None = None
    secret: bool = False
    metavar: str = ""
    since: str = "0.1.0"


class ArgumentGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of arguments: fields annotated with `Arg`, the title in the docstring's first line.

    place:       position among the groups, in help and documentation.
    for_servers: whether an HTTP server alone reads the arguments.
    """

    place: ClassVar[int]
    for_servers: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Given:
    """A value and where it came from: `command line`, `config file PATH`, `argument`, `default`, ..."""

    value: Any
    origin: str
