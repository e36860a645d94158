"""The commands' own switches, which are removed from a command line before the rest is parsed.

Owns: `--help[=WORD]`, switches such as `--json`, flags with one value. Never does: read engine arguments. Called by: the
commands.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.errors import UserError, nearest


def take_switch(words: list[str], *names: str) -> bool:
    """Remove a switch from `words`, and return whether it was there. names: all its spellings."""
    found = [word for word in words if word in names]
    words[:] = [word for word in words if word not in names]
    return bool(found)


def take_help(words: list[str]) -> str | None:
    """Return None without `--help`; else the word after `--help=`, or an empty string. `words` is not changed."""
    for word in words:
        if word in ("-h", "--help"):
            return ""
        if word.startswith("--help="):
            return word.removeprefix("--help=")
    return None


def take_value(words: list[str], flag: str) -> str | None:
    """Remove `flag VALUE` or `flag=VALUE` and return the value; None without the flag. Raises UserError without a value."""
    for index, word in enumerate(words):
        if word == flag:
            if index + 1 >= len(words):
                raise UserError(f"{flag}: a value is missing.")
            del words[index]
            return words.pop(index)
        if word.startswith(flag + "="):
            return words.pop(index).partition("=")[2]
    return None


def refuse_words(command: str, words: Sequence[str], valid: Sequence[str] = ()) -> None:
    """Raise UserError when words are left. valid: the command's flags, for the hint; empty: it takes no arguments."""
    if words and not valid:
        raise UserError(f"{command} {words[0]}: unexpected; the command takes no arguments.")
    if words:
        raise UserError(f"{command} {words[0]}: unexpected argument.{nearest(words[0], valid)}")
