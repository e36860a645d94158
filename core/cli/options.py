"""What all commands do with their own switches before the engine arguments are read.

Owns: `--help[=WORD]` and `--json`. Never does: read engine arguments. Called by: the commands.
"""

from __future__ import annotations

from core.args.help import Section, argument_sections, show
from core.args.parser import Parsed, Parser


def take_switch(words: list[str], *names: str) -> bool:
    """Remove a switch from `words`; whether it was there."""
    found = [word for word in words if word in names]
    words[:] = [word for word in words if word not in names]
    return bool(found)


def take_help(words: list[str]) -> str | None:
    """None without `--help`; else the word after `--help=`, or an empty string."""
    for word in words:
        if word in ("-h", "--help"):
            return ""
        if word.startswith("--help="):
            return word.removeprefix("--help=")
    return None


def show_engine_help(usage: str, intro: str, word: str) -> None:
    """All engine arguments, or those that `word` names; `KIND.NAME` shows one plugin's own arguments."""
    if "." in word:
        from core.cli.plugin_help import plugin_sections

        show(usage, intro, plugin_sections(word))
        return
    own = Section("Help", (("-h, --help, --help=WORD", "All arguments; or a group, an argument, a word, KIND.NAME."),))
    show(usage, intro, [own, *argument_sections(word or None)])


def parse_engine_arguments(words: list[str]) -> Parsed:
    """Engine arguments of a command line, with every problem."""
    return Parser(also=("--help", "--json")).parse(words)
