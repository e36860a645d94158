"""User input: lines, multi-line messages, or all of a pipe.

Owns: the reading of standard input. Never does: know commands. Called by: chat, complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from glob import escape, glob

from core.api.errors import UserError

FENCE = '"""'
MOST_CHARACTERS = 16 * 1024 * 1024


def typed(prompt: str) -> str:
    """Read the next message. Raises EOFError at the end of input, KeyboardInterrupt, UserError as `unicode` does."""
    try:
        text = input(prompt)
        if text.startswith(FENCE):
            return unicode(_until_fence(text.removeprefix(FENCE)), "The message")
        while text.endswith("\\"):
            text = text[:-1] + "\n" + input("… ")
    except UnicodeDecodeError:
        raise _no_unicode("The message") from None
    return unicode(text, "The message")


def piped() -> str:
    """Read all of standard input as one message. Raises UserError as `unicode` does, and for one that is too long."""
    try:
        text = sys.stdin.read(MOST_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise _no_unicode("Standard input") from None
    if len(text) > MOST_CHARACTERS:
        raise UserError(f"Standard input: longer than {MOST_CHARACTERS} characters; give a part of it.")
    return unicode(text.strip(), "Standard input")


def unicode(text: str, name: str) -> str:
    """Return the text unchanged. Raises UserError where its bytes were not UTF-8, which Python represents as lone
    surrogates. Raises UserError where its bytes were no UTF-8, which Python keeps as half characters.

    name: of the text, for messages.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _no_unicode(name) from None
    return text


def edit_lines(commands: Sequence[str] = ()) -> None:
    """Enable arrow keys, history, and tab completion of `commands` and the paths after them, where the system has
    readline.

    commands: such as `/file`.
    """
    with suppress(ImportError):
        import readline

        is_gnu = "libedit" not in (readline.__doc__ or "")
        if is_gnu:  # Python disables bracketed paste; without it each line of a pasted text would be a message
            readline.parse_and_bind("set enable-bracketed-paste on")

        def complete(word: str, number: int) -> str | None:
            found = completions(readline.get_line_buffer(), word, commands)
            return found[number] if number < len(found) else None

        if commands:
            readline.set_completer(complete)
            readline.set_completer_delims(" ")
            readline.parse_and_bind("tab: complete" if is_gnu else "bind ^I rl_complete")


def completions(line: str, word: str, commands: Sequence[str]) -> list[str]:
    """Return the completions of a line's last word: commands at its beginning, paths after one, none in a message."""
    if not line.startswith("/"):
        return []
    if " " not in line:
        return [command for command in commands if command.startswith(word)]
    found = glob(escape(os.path.expanduser(word)) + "*")
    return sorted(path + os.sep if os.path.isdir(path) else path for path in found)


def _no_unicode(name: str) -> UserError:
    return UserError(f"{name}: no text in UTF-8, and only texts can be given to the model.")


def _until_fence(first: str) -> str:
    """Read the lines up to the one that ends with the fence."""
    lines = [first]
    while not lines[-1].endswith(FENCE):
        lines.append(input("… "))
    lines[-1] = lines[-1].removesuffix(FENCE)
    return "\n".join(lines).strip("\n")
