"""The errors of the engine: each message names the subject, the value, the expectation and a way out.

Owns: the exception classes and the nearest-name helper. Never does: print or exit; the command line and the server
decide how an error is shown. Called by: all packages.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from core.api.plugin_choices import ResolvedPlugin

LONGEST_NAME = 200
"""Maximum length of a name for which a hint is computed: comparing longer ones with every valid name would be slow."""

ALIKE = 0.6
"""Minimum similarity of a misspelt name and its hint, from 0 to 1; below it hints are guesses."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All exceptions that msgspec raises for bytes that are not a message of the wanted type. Text that is not UTF-8 and values
that are nested too deeply have exceptions of their own, which are not subclasses of DecodeError."""


class CoreError(Exception):
    """Base of all errors that the engine raises on purpose. `str(error)` is a sentence for a person."""


class UserError(CoreError):
    """A mistake that the user can correct: printed as a sentence (exit code 2), never as a traceback."""


class ConfigError(UserError, ValueError):
    """One or more problems of a configuration, reported together.

    problems: one sentence per problem, in the order of the arguments.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class CheckpointError(UserError):
    """A file or directory of a checkpoint is missing, damaged or not understood; the sentence names the file."""


class RequestError(UserError, ValueError):
    """A mistake in one request; the engine continues.

    param:  the request field at fault, or None.
    status: the HTTP status that a server answers with.
    code:   OpenAI's short error code, or None.
    retry_after: seconds after which the same request may succeed, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.param = param
        self.status = status
        self.code = code


class PluginError(CoreError):
    """A plugin is broken, missing or refuses a task; the sentence names plugin and distribution.

    plugin: row of the plugin that failed; None: no plugin is at fault, or it is unknown which.
    """

    def __init__(self, message: str, plugin: ResolvedPlugin | None = None) -> None:
        super().__init__(message)
        self.plugin = plugin


class EngineDeadError(CoreError):
    """The engine process has ended; the sentence includes the cause.

    cause:    the cause as one word of `core_supervision.death`.
    suspects: handles of the sequences that the engine was computing when it died; empty when this is no evidence: between
              steps, or when memory was short; None: not yet determined.
    """

    def __init__(self, message: str, *, cause: str = "failure", suspects: Sequence[int] | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.suspects = suspects


class EngineStalledError(CoreError):
    """The engine process lives but has been silent for too long; it may recover. The sentence says since when."""


class UtilityError(CoreError):
    """A call of an engine's utility was wrong or failed; the engine continues. The sentence says what was expected."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint at the valid spelling nearest to `name`, such as ` Did you mean 'auto'?`, or an empty string."""
    if len(name) > LONGEST_NAME:
        return ""
    match = difflib.get_close_matches(name, list(valid), n=1, cutoff=ALIKE)
    return f" Did you mean '{match[0]}'?" if match else ""
