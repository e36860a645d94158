"""`core run-batch -i IN -o OUT [MODEL]`: every request of a file, without a server.

Owns: the command's arguments and its last line. Never does: run a request itself. Called by: main.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from core.api.errors import ConfigError, EngineDeadError, UserError
from core.args.arg import Arg
from core.args.own_files import own_path
from core.args.parser import Parsed
from core.args.sources import merge
from core.cli.options import parse_engine_arguments, take_help
from core.cli.own_options import option_section, own_flags, take_options

if TYPE_CHECKING:
    from core.batch.batch_file import BatchFile
    from core.batch.results import Results
    from core.client.app_endpoint import AppEndpoint
    from core.config.resolve import Resolution

USAGE = "core run-batch -i IN -o OUT [MODEL] [ARGUMENTS]"
SUMMARY = (
    "Run every request of a batch file in OpenAI's form with an engine of its own, and write a result for each. The same "
    "command goes on where it was interrupted."
)
AHEAD = 2
"""Requests at once, for each sequence that runs: the next ones are prepared while these run."""


class RunBatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of run-batch."""

    input_file: Annotated[
        str | None,
        Arg("File with a request a line: custom_id, method, url, body.", short=("i",), metavar="IN"),
    ] = None
    output_file: Annotated[
        str | None,
        Arg(
            "File for the results, in the order of the requests. It appears when all are done; until then they are in "
            "OUT.partial.",
            short=("o",),
            metavar="OUT",
        ),
    ] = None
    overwrite: Annotated[bool, Arg("Replace an output that is there already.")] = False


def run_batch(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    if take_help(words) is not None:
        _show_help()
        return 0
    options = take_options(RunBatchOptions, words)
    source, out = _files(options)
    parsed = parse_engine_arguments(words, own_flags(RunBatchOptions))
    from core.batch.batch_file import look_through
    from core.batch.results import Results

    merged = merge(parsed.values, os.environ)
    model = merged.value("model") or ""
    batch = look_through(source, model, merged.value("max_body_size"))
    with Results(out) as results:
        num_broken = sum(place.error is not None for place in batch.places)
        missing = [place for place in batch.places if place.error is None and not results.has(place)]
        total = len(batch.places) - num_broken
        if missing:
            if len(missing) < total:
                print(f"{results.path}: going on; {len(missing)} of {total} requests are left.", file=sys.stderr)
            code = _run(parsed, batch, results, len(missing), total)
            if code:
                return code
        elif parsed.problems or merged.problems:
            raise ConfigError([*parsed.problems, *merged.problems])
        num_errors = results.finish(batch)
    _tell(out, batch, num_errors)
    return 0


def _run(parsed: Parsed, batch: "BatchFile", results: "Results", num_missing: int, total: int) -> int:
    from core.batch.progress import BatchProgress
    from core.batch.run import run_batch as run
    from core.client.own_engine import run_with_own_engine

    async def work(endpoint: "AppEndpoint", resolution: "Resolution") -> int:
        scheduler = resolution.engine.scheduler
        at_once = AHEAD * scheduler.max_num_seqs
        if scheduler.max_num_queued_reqs:
            at_once = min(at_once, scheduler.max_num_queued_reqs)
        progress = BatchProgress(total, total - num_missing)
        try:
            await run(endpoint, batch, results, min(at_once, num_missing), progress.advance)
        finally:
            progress.close()
        return 0

    try:
        return run_with_own_engine(parsed, work)
    except KeyboardInterrupt:
        print(f"core run-batch: interrupted. {_kept(results)}", file=sys.stderr)
        return 130
    except EngineDeadError:
        print(f"core run-batch: {_kept(results)}", file=sys.stderr)
        raise


def _kept(results: "Results") -> str:
    return f"{len(results)} results are kept in {results.path}; the same command goes on from there."


def _files(options: RunBatchOptions) -> tuple[Path, Path]:
    """Input and output. Raises UserError."""
    if options.input_file is None or options.output_file is None:
        missing = "-i IN" if options.input_file is None else "-o OUT"
        raise UserError(f"core run-batch: {missing} is missing: core run-batch -i IN -o OUT [MODEL].")
    for name in (options.input_file, options.output_file):
        if name.startswith(("http://", "https://")):
            raise UserError(f"{name}: only local files are read and written; download or upload it yourself.")
    source = own_path(options.input_file)
    out = own_path(options.output_file)
    is_there = os.path.exists(out)
    is_other = is_there and not os.path.isfile(out)
    if is_other or not os.path.isdir(out.parent):
        raise UserError(f"-o {out}: expected a file in a directory that is there.")
    if is_there and not options.overwrite:
        raise UserError(f"-o {out}: is there already; name another file, or replace it with --overwrite.")
    if is_there and os.path.exists(source) and os.path.samefile(source, out):
        raise UserError(f"-o {out}: is the input; name another file.")
    return source, out


def _tell(out: Path, batch: "BatchFile", num_errors: int) -> None:
    """The last line."""
    text = f"{out}: {len(batch.places)} results"
    if num_errors:
        text += f", {num_errors} of them errors"
    if batch.num_repeated:
        text += f"; lines that repeat another one: {batch.num_repeated}"
    print(text)


def _show_help() -> None:
    from core.args.show import Section, show

    arguments = Section("Engine", (("[MODEL] [ARGUMENTS]", "As of core serve; without MODEL the embedded one."),))
    show(USAGE, SUMMARY, [option_section("Options", RunBatchOptions), arguments])
