"""The engine's arguments on a command line: reading them, and help about them.

Owns: `--help=WORD`, and the parser with a command's own flags as hints. Never does: resolve. Called by: the commands.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.errors import UserError
from core.args.show import Section, show
from core.plugin.kinds import KINDS
from core_config.arguments.help import (
    ELSEWHERE,
    argument_named,
    argument_sections,
    group_sections,
    sections_about,
    short_sections,
)
from core_config.arguments.parser import Parsed, Parser

_WORDS = (
    "This; or all arguments (all; page: in a pager), a group, an argument, a word in the help, KIND.NAME (a plugin's own), "
    "listgroup."
)


def show_engine_help(usage: str, intro: str, word: str) -> None:
    """Print help for the common engine arguments, or for those that `word` names; `KIND.NAME` selects one plugin's own
    arguments.
    """
    own = Section("Help", (("-h, --help, --help=WORD", _WORDS),))
    if word == "":
        show(usage, intro, [own, *short_sections()])
    elif word in ("all", "page"):
        show(usage, intro, [own, *argument_sections()], page=word == "page")
    elif word == "listgroup":
        show(usage, intro, [own, *group_sections()])
    else:
        show(usage, intro, _narrowed(word))


def _narrowed(word: str) -> list[Section]:
    """Return the arguments that `word` names: the engine's, or else those of plugins. Raises UserError."""
    from core_commands.cli.plugin.choices import names_for
    from core_commands.cli.plugin.help import plugin_sections, plugins_with

    head, dot, _ = word.partition(".")
    if dot and not head.startswith("-") and head in [kind.name for kind in KINDS]:
        return plugin_sections(word)
    try:
        sections = sections_about(head if dot and head.startswith("-") else word)
    except UserError:
        found = plugins_with(word)
        if not found:
            raise
        return found
    field = argument_named(word)
    if field is not None:
        return [*sections, *names_for(field)]
    is_short = word.startswith("-") and not word.startswith("--")
    if [section.title for section in sections] == [ELSEWHERE] and not is_short:
        return [*plugins_with(word), *sections]
    return sections


def parse_engine_arguments(words: list[str], also: Sequence[str] = ("--json",)) -> Parsed:
    """Parse the engine arguments of a command line, collecting every problem. also: the command's own flags, for hints."""
    return Parser(also=("--help", *also)).parse(words)
