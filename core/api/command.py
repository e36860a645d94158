"""The contract of a command: the object that a plugin of kind `command` builds for `core NAME ...`.

Owns: `Command` and `HasOptions`. Never does: run a command. Called by: `core.commands`, plugins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import msgspec


@runtime_checkable
class Command(Protocol):
    """One command of `core`, named by its entry point: `hello` is `core hello`, `plugins.list` is `core plugins list`.

    usages: pairs of (words after the command's name, sentence about them), for `core --help`.
    """

    usages: Sequence[tuple[str, str]]

    def run(self, words: list[str]) -> int:
        """Run the command and return its exit code: 0 done, 1 failed, 2 a mistake of the user.

        words: the words that the user typed after the command's name; may be modified. `--help` among them requests help.
        Raises UserError for a mistake of the user: it is printed as a sentence, and the exit code is 2.
        """
        ...


@runtime_checkable
class HasOptions(Protocol):
    """A command that declares its own options as Structs, so that shell completion knows them."""

    def options(self) -> Sequence[type[msgspec.Struct]]:
        """Return the Structs, whose fields are `Annotated[type, Arg(...)]`."""
        ...
