"""The declaration of one argument, beyond its type and default.

Owns: `Arg` (an annotation), `ArgumentGroup` (the base of the groups), `Given` (a value with its origin). Never does: parse or
convert.
Called by: the group files (they annotate with `Arg`), schema, parser, sources, help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

HIDDEN = "***"  # Shown instead of a secret.


@dataclass(frozen=True, slots=True)
class Arg:
    """The declaration of an argument, as annotation of a field.

    Example: `port: Annotated[int, Arg("Port to listen on.", ge=0, le=65535)] = 8000`.

    help:     help text of one or two sentences.
    choices:  allowed values (of each item, for a list); empty for any.
    ge, gt, le: limits of a number.
    aliases:  other long names.
    short:    short names, which are written with one dash; without the dash here.
    human:    whether an integer may be written `25.6k` (factor 1000) or `1K` (factor 1024).
    words:    (word, value) pairs: words accepted instead of a value, such as ("auto", -1).
    bare:     the word that a flag without a value stands for; None: a value is required.
    commas:   whether a list may also be written `a,b`.
    keys:     a Struct whose annotated fields are the only keys of a mapping; None: any key.
    plugin:   kind of plugin that this argument names, for help and errors.
    secret:   whether the value is never shown: neither in warnings and problems nor by `core config`.
    metavar:  placeholder of the value in help.
    since:    first version with the argument.
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
    """A value with its origin: `command line`, `config file PATH`, `argument`, `default`, ..."""

    value: Any
    origin: str
