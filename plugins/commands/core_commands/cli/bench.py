"""`core bench serve|latency|throughput|startup|sweep|plot|card`.

Owns: the table of these commands, and their output. Never does: measure itself. Called by: the frame.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from core.api.errors import UserError, nearest
from core.args.show import Section, show
from core.commands.tables import print_json
from core.commands.words import take_help
from core_commands.bench.dataset_options import DatasetOptions
from core_commands.bench.offline_options import LatencyOptions, OfflineOptions, StartupOptions, ThroughputOptions
from core_commands.bench.serve_options import REFUSED_FLAGS, ServeOptions
from core_commands.bench.sweep_options import PlotOptions, SweepOptions
from core_commands.card.command import card
from core_commands.card.options import CardOptions
from core_commands.cli.options import parse_engine_arguments
from core_commands.cli.own_files import own_path, write_whole
from core_commands.cli.own_options import option_section, own_flags, refuse_rest, take_options

USAGE = "core bench COMMAND [ARGUMENTS]"
SUMMARY = "Measure servers and engines. Names of arguments and of fields in results are vLLM's."


@dataclass(frozen=True, slots=True)
class BenchCommand:
    """A subcommand. usage, help: for the help text. options: its option structs. run: executes it with its words."""

    usage: str
    help: str
    options: tuple[type[msgspec.Struct], ...]
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
        sections = [option_section(_title(struct), struct) for struct in command.options]
        show(command.usage, command.help, sections)
        return 0
    return command.run(words)


def _title(struct: type[msgspec.Struct]) -> str:
    """Return the heading of a help section."""
    return (inspect.getdoc(struct) or "Options.").splitlines()[0].rstrip(".")


def serve(words: list[str]) -> int:
    """Run `core bench serve`; returns the exit code."""
    options = take_options(ServeOptions, words)
    refuse_rest("bench serve", words, ServeOptions, REFUSED_FLAGS)
    from core_commands.bench import report
    from core_commands.bench.serve import run

    is_saved = options.save_result or options.append_result or options.save_detailed
    if is_saved:  # reports a mistake before the measurement, not after
        report.make_directory(own_path(options.result_dir or "."))
    result = run(options)
    shown = report.without_details(result)
    if options.json:
        print_json(shown)
    else:
        print(report.serving_table(shown))
    if is_saved:
        path = report.result_path(result, options.result_dir, options.result_filename)
        report.write_json(path, result, append=options.append_result)
    return 0


def latency(words: list[str]) -> int:
    """Run `core bench latency`; returns the exit code."""
    options = take_options(LatencyOptions, words)
    parsed = parse_engine_arguments(words, own_flags(LatencyOptions))
    _check_output(options)
    from core_commands.bench import offline

    result = offline.latency(options, parsed)
    return _print_result("Latency of a batch", options, result, offline.latency_rows(result))


def throughput(words: list[str]) -> int:
    """Run `core bench throughput`; returns the exit code."""
    options = take_options(ThroughputOptions, words)
    dataset = take_options(DatasetOptions, words)
    parsed = parse_engine_arguments(words, [*own_flags(ThroughputOptions), *own_flags(DatasetOptions)])
    _check_output(options)
    from core_commands.bench import offline

    result = offline.throughput(options, dataset, parsed)
    return _print_result("Throughput", options, result, offline.throughput_rows(result))


def startup(words: list[str]) -> int:
    """Run `core bench startup`; returns the exit code."""
    options = take_options(StartupOptions, words)
    parsed = parse_engine_arguments(words, own_flags(StartupOptions))
    _check_output(options)
    from core_commands.bench import startup as starts

    result = starts.startup(options, parsed)
    return _print_result("Start of an engine", options, result, starts.startup_rows(result))


def sweep(words: list[str]) -> int:
    """Run `core bench sweep`; returns the exit code."""
    searches = words[:1] == ["serve_sla"]
    if searches or words[:1] == ["serve"]:  # vLLM's spellings
        words.pop(0)
    options = take_options(SweepOptions, words)
    refuse_rest("bench sweep", words, SweepOptions)
    if searches and not options.sla:
        raise UserError("core bench sweep serve_sla: say what to keep to, such as --sla 'p99_ttft_ms<=500'.")
    from core_commands.bench.sweep import sweep as run

    rows = run(options)
    if rows:
        print(f"{options.output_dir}/summary.csv: {len(rows)} results")
    return 0


CHARTS = ("output_throughput", "median_ttft_ms", "p99_itl_ms")
"""Fields that are drawn when none is named."""


def plot(words: list[str]) -> int:
    """Run `core bench plot`; returns the exit code."""
    options = take_options(PlotOptions, words)
    files = [word for word in words if not word.startswith("-")]
    refuse_rest("bench plot", [word for word in words if word.startswith("-")], PlotOptions)
    from core_commands.bench import plot as drawing

    rows = drawing.read_rows(files)
    x = options.x or ("output_throughput_per_user" if options.pareto else "request_rate")
    charts = {}
    for y in options.y or (["output_throughput"] if options.pareto else CHARTS):
        lines = drawing.lines_of(rows, x, y, options.by or ())
        charts[y] = {name: drawing.frontier(line, x, y) for name, line in lines.items()} if options.pareto else lines
    write_whole(own_path(options.output), drawing.svg(charts, x).encode())
    print(f"{options.output}: {len(rows)} results")
    return 0


def _check_output(options: OfflineOptions) -> None:
    """Raise UserError when the result cannot be written: before the measurement, not after."""
    from core_commands.bench import report

    if options.output_json is not None:
        path = own_path(options.output_json)
        report.make_directory(path.parent)
        if path.is_dir():
            raise UserError(f"--output-json {path}: is a directory; name a file.")


def _print_result(
    title: str, options: OfflineOptions, result: Mapping[str, Any], rows: Sequence[tuple[str, str]]
) -> int:
    """Print a result, and write it where requested."""
    from core_commands.bench import report

    if options.json:
        print_json(result)
    else:
        print(report.plain_table(title, rows))
    if options.output_json is not None:
        report.write_json(own_path(options.output_json), result)
    return 0


COMMANDS: Mapping[str, BenchCommand] = {
    "serve": BenchCommand(
        "core bench serve [ARGUMENTS]",
        "Send requests to any server with OpenAI's API, and tell throughput, latencies and goodput.",
        (ServeOptions,),
        serve,
    ),
    "latency": BenchCommand(
        "core bench latency [MODEL] [ARGUMENTS]",
        "Time batches of one size with an engine in this process; further arguments as of core serve.",
        (LatencyOptions,),
        latency,
    ),
    "throughput": BenchCommand(
        "core bench throughput [MODEL] [ARGUMENTS]",
        "Time many requests at once with an engine in this process; further arguments as of core serve.",
        (ThroughputOptions, DatasetOptions),
        throughput,
    ),
    "startup": BenchCommand(
        "core bench startup [MODEL] [ARGUMENTS]",
        "Time the start of an engine, each time with a new process; further arguments as of core serve.",
        (StartupOptions,),
        startup,
    ),
    "sweep": BenchCommand(
        "core bench sweep -o DIR [ARGUMENTS]",
        "Run every combination of a server's arguments and a measurement's; a table of all results is in DIR.",
        (SweepOptions,),
        sweep,
    ),
    "card": BenchCommand(
        "core bench card [MODEL] [ARGUMENTS]",
        "Shares of this machine's limits that a model reaches, and what would help; further arguments as of core serve.",
        (CardOptions,),
        card,
    ),
    "plot": BenchCommand(
        "core bench plot RESULT... [ARGUMENTS]",
        "Draw results of bench serve, or the directory of a sweep, as line charts.",
        (PlotOptions,),
        plot,
    ),
}
