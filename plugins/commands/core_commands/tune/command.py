"""`core tune [MODEL] [ARGUMENTS] --dataset FILE --goal ttft:500,itl:50 -o tuned.yaml`.

Owns: the words of the command, its directory for servers, its output and exit codes. Never does: choose or measure
(`core_commands.tune` does). Called by: the frame.
"""

from __future__ import annotations

import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from core.commands.tables import print_json
from core.commands.words import take_help
from core.version import __version__
from core_commands.cli.options import parse_engine_arguments, show_engine_help
from core_commands.cli.own_files import own_path, write_whole
from core_commands.cli.own_options import option_section, own_flags, take_options
from core_commands.tune.options import TuneOptions

if TYPE_CHECKING:
    from core_commands.tune.trials import Findings
    from core_commands.tune.tune import Prepared

USAGE = "core tune [MODEL] [ARGUMENTS] [--dataset NAME|FILE] [--goal ttft:500,itl:50] [--minutes 5] [-o tuned.yaml]"
SUMMARY = (
    "Try arguments of core serve on this machine with this model and load, and say which ones help, by how much. Further "
    "arguments are those of core serve; what is given stays as it is."
)


def tune(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    wanted = take_help(words)
    if wanted is not None:
        _show_help(wanted)
        return 0
    options = take_options(TuneOptions, words)
    parsed = parse_engine_arguments(words, own_flags(TuneOptions))
    output = None if options.output is None else own_path(options.output)
    from core_commands.bench.report import make_directory
    from core_commands.tune import report
    from core_commands.tune.tune import prepare, run_trials

    if output is not None:  # tells of a mistake before the trials, not after
        make_directory(output.parent)
    prepared = prepare(options, parsed)
    for warning in parsed.warnings:
        print(f"core: warning: {warning}", file=sys.stderr)
    begin = time.monotonic()

    def say(text: str) -> None:
        passed = int(time.monotonic() - begin)
        print(f"[{passed // 60:02}:{passed % 60:02}] {text}", file=sys.stderr, flush=True)

    say(f"{len(prepared.choice.candidates)} values to try, within {options.minutes:g} minutes")
    with tempfile.TemporaryDirectory(prefix="core-tune-") as directory:
        found = run_trials(prepared, Path(directory), say)
    if options.json:
        head = {"model": prepared.values["model"], "goal": prepared.goals.text(), "version": __version__}
        print_json(report.as_json(found, head))
    else:
        print(report.as_text(found, options.least_effect))
    if output is not None:
        given = {name: value for name, value in prepared.base.given.items() if name != "config"}
        write_whole(output, report.as_yaml(_head(prepared, found), given, found).encode())
        print(f"{output}: for core serve --config", file=sys.stderr)
    return 0


def _head(prepared: Prepared, found: Findings) -> list[str]:
    """Return the comments at the top of the file."""
    from core_commands.tune.report import bandwidth, verdict

    options = prepared.options
    load = options.dataset_path or options.dataset_name
    many = "no limit of" if prepared.streams is None else f"at most {prepared.streams}"
    return [
        f"core tune {__version__}, {datetime.now():%Y-%m-%d}, numerics {prepared.base.numerics}",
        f"goal {prepared.goals.text()} ({prepared.goals.percentile:g}%); load: {load}, {many} requests at once, "
        f"{options.request_rate:g} requests a second",
        verdict(found, options.least_effect),
        bandwidth(found),
    ]


def _show_help(word: str) -> None:
    from core.args.show import show

    if word:
        show_engine_help(USAGE, SUMMARY, word)
    else:
        show(USAGE, SUMMARY, [option_section("Options", TuneOptions)])
