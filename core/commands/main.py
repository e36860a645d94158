"""The entry point of the command `core`: dispatch, user errors as sentences, exit codes.

Owns: the first words of a command line. Never does: import torch before a command needs it. Called by: the shell.
Exit codes: 0 done, 1 the engine failed, 2 a mistake of the user, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence

from core.api.errors import ConfigError, CoreError, UserError
from core.commands.printable import safe
from core.commands.streams import open_standard_streams
from core.version import __version__

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing to the output. The same errors of opening a file carry a file name, and are not handled here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. argv: the words after `core`; None: those of this process."""
    words = list(sys.argv[1:] if argv is None else argv)
    open_standard_streams()
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_output()
        return 0
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename is not None:
            raise
        _drop_output()
        _say([f"the output cannot be written: {error.strerror}."])
        return 1
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        _say(error.problems)
        return 2
    except UserError as error:
        _say([str(error)])
        return 2
    except CoreError as error:
        _say([str(error)])
        return 1


def _dispatch(words: list[str]) -> int:
    if words and words[0] in ("-V", "--version", "version"):
        print(f"core {__version__}")
        return 0
    from core.commands.finding import find  # Imported here: `--version` does not need it.

    if not words or words[0] in ("-h", "--help", "help"):
        _help("core COMMAND [ARGUMENTS]", "Serve large language models.")
        return 0 if words else 2
    command, rest = find(words)
    if command is not None:
        return command.run(rest)
    from core.commands.table import GROUPS

    first = words[0]
    _help(f"core {first} COMMAND", GROUPS.get(first, f"The commands of core {first}."), first)
    return 0 if rest else 2


def _help(usage: str, intro: str, first: str = "") -> None:
    from core.args.show import show  # Imported here: it takes 10 ms, which a command without help need not spend.
    from core.commands.overview import overview

    show(usage, intro, overview(first))


def _drop_output() -> None:
    """Redirect standard output to the null device: the interpreter writes the rest of the buffer once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(problems: Sequence[str]) -> None:
    """Print problems to standard error, one per line, without control characters: they may quote a server or a file."""
    head = "core:" if len(problems) == 1 else "core: -"
    with contextlib.suppress(OSError):  # With a full disk or a closed pipe, the exit code must still be returned.
        for problem in problems:
            print(head, safe(problem), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
