"""Checks of commands: help is there, and a mistake is a sentence.

Owns: the checks. Never does: run the command's actual work. Called by: `core_kit.suite`.
"""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any, Final

from core.api.errors import UserError
from core_kit.case import Failure, Subject

UNKNOWN: Final = "--no-command-has-this-option"


def has_usages(subject: Subject) -> None:
    """There is a usage, and a sentence about each."""
    usages = subject.loaded.usages
    if not usages:
        raise Failure("usages is empty; `core --help` has nothing to show")
    for words, sentence in usages:
        if not isinstance(words, str) or not isinstance(sentence, str) or not sentence.strip():
            raise Failure(f"usages has {(words, sentence)!r}, expected words and a sentence")


def prints_help(subject: Subject) -> None:
    """`--help` prints something on standard output and returns 0."""
    command = subject.loaded
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = _run(command, "--help")
    if code != 0:
        raise Failure(f"run(['--help']) returned {code!r}, expected 0")
    if not out.getvalue().strip():
        raise Failure("run(['--help']) printed nothing")


def refuses_unknown_words(subject: Subject) -> None:
    """An option that it does not have is refused: a UserError, or an exit code that is not 0."""
    command = subject.loaded
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = _run(command, UNKNOWN)
    except UserError:
        return
    if code == 0:
        raise Failure(f"run(['{UNKNOWN}']) returned 0, expected a UserError that names the option")


def _run(command: Any, word: str) -> Any:
    """Run the command with one word and no input, and return its exit code, including argparse's SystemExit."""
    given, sys.stdin = sys.stdin, io.StringIO()
    try:
        return command.run([word])
    except SystemExit as error:
        return error.code or 0
    finally:
        sys.stdin = given


CHECKS = (has_usages, prints_help, refuses_unknown_words)
