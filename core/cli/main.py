"""Entry of the command `core`: dispatch, user errors as sentences, exit codes.

Owns: the first words of a command line. Never does: import torch before a command needs it. Called by: the shell.
Exit codes: 0 done, 1 the engine failed, 2 a mistake of the user, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from core.api.errors import ConfigError, CoreError, UserError, nearest
from core.observe.output import open_standard_streams
from core.observe.printable import safe
from core.version import __version__

if TYPE_CHECKING:
    from core.args.show import Section

Command = Callable[[list[str]], int]

COMMANDS = {
    "serve": "core.cli.serve:serve",
    "chat": "core.cli.chat:chat",
    "complete": "core.cli.chat:complete",
    "run-batch": "core.cli.run_batch:run_batch",
    "bench": "core.cli.bench:bench",
    "collect-env": "core.cli.collect_env:collect_env",
    "plugins": "core.cli.plugins:plugins",
    "models": "core.cli.models:models",
    "config": "core.cli.config:config",
    "build-kernels": "core.cli.build_kernels:build_kernels",
    "kernels": "core.cli.kernels:kernels",
    "convert": "core.cli.convert:convert",
    "save-sharded": "core.cli.save_sharded:save_sharded",
    "dashboard": "core.cli.dashboard:dashboard",
}
"""The function of each command, as MODULE:NAME."""

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a file that is written to; those of opening one come with its name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
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
    if not words or words[0] in ("-h", "--help", "help"):
        from core.args.show import show

        show("core COMMAND [ARGUMENTS]", "Serve large language models.", [_overview()])
        return 0 if words else 2
    if words[0] in ("-V", "--version", "version"):
        print(f"core {__version__}")
        return 0
    command = _command(words[0])
    return command(words[1:])


def _command(name: str) -> Command:
    """The function behind a command's name, imported when it is needed."""
    if name == "completion":
        from core.cli.completion import completion

        return lambda words: completion(words, _overview())
    if name in COMMANDS:
        module, _, function = COMMANDS[name].partition(":")
        command: Command = getattr(importlib.import_module(module), function)
        return command
    commands = [row[0].split()[0] for row in _overview().rows]
    raise UserError(
        f"core {name}: unknown command; known: {', '.join(dict.fromkeys(commands))}.{nearest(name, commands)}"
    )


def _overview() -> Section:
    from core.args.show import Section

    return Section(
        "Commands",
        (
            ("serve [MODEL]", "Start the server; without MODEL the embedded one."),
            ("chat [MODEL]", "Talk to a model in the terminal: to the running server's, or one of its own."),
            ("complete [MODEL]", "Have a model continue texts, in the same way."),
            (
                "run-batch -i IN -o OUT",
                "Run every request of a batch file; goes on where it was interrupted.",
            ),
            ("bench serve|latency|throughput|startup|sweep|plot", "Measure a server, or an engine in this process."),
            ("collect-env", "Versions, processor, memory, GPUs and plugins, for a report about a problem."),
            ("models", "Every model family that can be served."),
            ("models explain PATH", "One checkpoint: what is read, what is ignored and why, what is refused."),
            ("plugins list", "Every plugin that is installed, and whether it can be used."),
            ("plugins show NAME", "One plugin: what it is, what it takes, why it is broken."),
            ("plugins explain [MODEL]", "What `serve` would use, and why: arguments, plugins, memory."),
            ("plugins check NAME", "Try whether a plugin keeps its promises."),
            ("plugins new KIND NAME", "Write a package with a new plugin, which works as written."),
            ("config explain [MODEL]", "Every value with its origin and reason, plugins, and the memory plan."),
            ("config show [MODEL]", "The configuration as YAML, for --config."),
            ("config schema", "JSON Schema of all arguments."),
            ("convert MODEL OUT", "Write a model's kernels to files that start without packing."),
            ("save-sharded MODEL OUT", "Write a model's tensors to files for --load-format sharded_state."),
            ("build-kernels", "Compile native kernels again."),
            ("kernels build [MODEL]", "Compile the kernels for GPUs ahead, so that a start waits for no compiler."),
            (
                "kernels tune MODEL",
                "Measure how a model's products are computed best on a GPU; prints lines for a table.",
            ),
            ("dashboard", "Print a Grafana dashboard for the server's metrics."),
            ("completion bash|zsh|fish", "Print a script that completes commands, flags and plugin names."),
            ("--version", "The version."),
        ),
    )


def _drop_output() -> None:
    """Let what is left in the buffer go nowhere, as the interpreter writes it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(problems: Sequence[str]) -> None:
    """Problems on standard error, one a line. Some have words of a server or a file in them."""
    head = "core:" if len(problems) == 1 else "core: -"
    with contextlib.suppress(OSError):  # a full disk or a reader that is gone: the exit code remains
        for problem in problems:
            print(head, safe(problem), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
