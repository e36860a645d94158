"""`core bench serve|latency|throughput|startup|sweep|plot`.

Owns: the table of these commands, what they print. Never does: measure itself. Called by: main.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from core.api.errors import UserError, nearest
from core.args.show import Section, show
from core.bench.options import ServeOptions
from core.cli.options import take_help
from core.cli.own_options import option_section, refuse_rest, take_options
from core.cli.tables import print_json

USAGE = "core bench COMMAND [ARGUMENTS]"
SUMMARY = "Measure servers and engines. Names of arguments and of fields in results are vLLM's."


@dataclass(frozen=True, slots=True)
class BenchCommand:
    """usage, help: for people. options: its own. run: takes its words."""

    usage: str
    help: str
    options: type[msgspec.Struct]
    run: Callable[[list[str]], int]


def bench(words: list[str]) -> int:
    """Run one of the commands; returns the exit code."""
    if not words or words[0].startswith("-"):
        rows = [(f"{name} --help", command.help) for name, command in COMMANDS.items()]
        show(USAGE, SUMMARY, [Section("Commands", tuple(rows))])
        return 0 if take_help(words) is not None else 2
    name = words.pop(0)
    command = COMMANDS.get(name)
    if command is None:
        raise UserError(f"core bench {name}: expected one of {', '.join(COMMANDS)}.{nearest(name, COMMANDS)}")
    if take_help(words) is not None:
        show(command.usage, command.help, [option_section("Options", command.options)])
        return 0
    return command.run(words)


def serve(words: list[str]) -> int:
    """A load on a server."""
    options = take_options(ServeOptions, words)
    refuse_rest("bench serve", words, ServeOptions)
    from core.bench import report
    from core.bench.serve import run

    result = run(options)
    shown = report.without_details(result)
    if options.json:
        print_json(shown)
    else:
        print(report.serving_table(shown))
    if options.save_result or options.append_result or options.save_detailed:
        path = report.result_path(result, options.result_dir, options.result_filename)
        report.write_json(path, result, append=options.append_result)
    return 0


COMMANDS: Mapping[str, BenchCommand] = {
    "serve": BenchCommand(
        "core bench serve [ARGUMENTS]",
        "Send requests to any server with OpenAI's API, and tell throughput, latencies and goodput.",
        ServeOptions,
        serve,
    ),
}
