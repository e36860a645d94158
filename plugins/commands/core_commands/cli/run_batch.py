"""`core run-batch -i IN -o OUT [MODEL]`: run every request of a file, on an own engine or a server.

Owns: the command's arguments and its last line. Never does: run a request itself. Called by: the frame.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from core.api.errors import ConfigError, EngineDeadError, UserError
from core.args.arg import Arg
from core.commands.printable import safe
from core.commands.words import take_help
from core_commands.cli.options import parse_engine_arguments
from core_commands.cli.own_files import own_path
from core_commands.cli.own_options import option_section, own_flags, take_options
from core_config.arguments.parser import Parsed
from core_config.arguments.sources import merge

if TYPE_CHECKING:
    from collections import Counter

    from core_apis.batches.batch_file import BatchFile
    from core_commands.batch.results import Results
    from core_commands.batch.target import BatchTarget
    from core_commands.client.endpoint import Endpoint

USAGE = "core run-batch -i IN -o OUT [MODEL] [ARGUMENTS]"
SUMMARY = (
    "Run every request of a batch file in OpenAI's form with an engine of its own, or with --url on a server, and write a "
    "result for each. The same command goes on where it was interrupted."
)
MOST_ERRORS = 5
"""Limit on the distinct errors printed; all of them are in the output."""


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
    url: Annotated[
        str | None, Arg("A server that answers instead: http://HOST:PORT/v1, https://HOST/v1 or unix:/PATH.")
    ] = None
    model_name: Annotated[
        str | None, Arg("With --url: the model of requests that name none. Unset: the server's first.")
    ] = None
    api_key: Annotated[str | None, Arg("With --url: key of the server. Unset: CORE_API_KEY.", secret=True)] = None
    max_concurrency: Annotated[
        int | None, Arg("Most requests at once. Unset: what the engine takes, or 16 at a server.", ge=1)
    ] = None


def run_batch(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    if take_help(words) is not None:
        _show_help()
        return 0
    options = take_options(RunBatchOptions, words)
    source, out = _files(options)
    parsed = parse_engine_arguments(words, own_flags(RunBatchOptions))
    from core_apis.batches.batch_file import look_through
    from core_commands.batch.results import Results

    merged = merge(parsed.values, os.environ)
    target = _target(options, parsed, merged.value("model") or "")
    batch = look_through(source, target.model, merged.value("max_body_size"))
    with Results(out) as results:
        missing = [place for place in batch.runnable if not results.has(place)]
        total = len(batch.runnable)
        if missing:
            _print_begin(results, len(missing), total)
            code = _run(target, batch, results, len(missing))
            if code:
                return code
        elif parsed.problems or merged.problems:
            raise ConfigError([*parsed.problems, *merged.problems])
        errors = results.finish(batch)
    _print_summary(out, batch, errors)
    return 0


def _target(options: RunBatchOptions, parsed: Parsed, model: str) -> "BatchTarget":
    """Return the target of the requests. Raises UserError, EndpointError."""
    from core_commands.batch.target import OwnEngine, Server

    if options.url is None:
        for name in ("api_key", "model_name"):
            if getattr(options, name) is not None:
                flag = "--" + name.replace("_", "-")
                raise UserError(f"{flag}: has no meaning here without --url, which names a server; leave it out.")
        return OwnEngine(parsed, model, options.max_concurrency)
    from core_commands.client.own_engine import refuse_beside_url

    refuse_beside_url(parsed)
    key = options.api_key or os.environ.get("CORE_API_KEY")
    return Server(options.url, options.model_name, key, options.max_concurrency)


def _run(target: "BatchTarget", batch: "BatchFile", results: "Results", num_missing: int) -> int:
    """Run the missing requests; returns the exit code. Finished results are kept in any case."""
    from core_commands.batch.progress import BatchProgress
    from core_commands.batch.run import ServerGoneError
    from core_commands.batch.run import run_batch as run

    async def work(endpoint: "Endpoint", most_at_once: int) -> None:
        progress = BatchProgress(len(batch.runnable), len(batch.runnable) - num_missing)
        at_once = min(most_at_once, num_missing)
        try:
            await run(endpoint, batch, results, at_once, progress.advance, target.default_model)
        finally:
            progress.close()

    try:
        target.run(work)
    except KeyboardInterrupt:
        print(f"core run-batch: interrupted. {_kept(results)}", file=sys.stderr)
        return 130
    except (EngineDeadError, ServerGoneError):
        print(f"core run-batch: {_kept(results)}", file=sys.stderr)
        raise
    return 0


def _print_begin(results: "Results", num_missing: int, total: int) -> None:
    """Print how much an earlier run has finished."""
    if num_missing < total:
        print(f"{results.path}: going on; {num_missing} of {total} requests are left.", file=sys.stderr)
    elif len(results):
        print(f"{results.path}: what it holds is of other requests or another model; all run.", file=sys.stderr)


def _kept(results: "Results") -> str:
    return f"{len(results)} results are kept in {results.path}; the same command goes on from there."


def _files(options: RunBatchOptions) -> tuple[Path, Path]:
    """Return the input and output paths. Raises UserError."""
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
    if is_there and os.path.exists(source) and os.path.samefile(source, out):
        raise UserError(f"-o {out}: is the input; name another file.")
    if is_there and not options.overwrite:
        raise UserError(f"-o {out}: is there already; name another file, or replace it with --overwrite.")
    return source, out


def _print_summary(out: Path, batch: "BatchFile", errors: "Counter[str]") -> None:
    """Print the last line; before it, on standard error, the most frequent errors."""
    for sentence, count in errors.most_common(MOST_ERRORS):
        print(f"{count} x {safe(sentence)}", file=sys.stderr)
    if len(errors) > MOST_ERRORS:
        print(f"and {len(errors) - MOST_ERRORS} other errors", file=sys.stderr)
    text = f"{out}: {len(batch.places)} results"
    if errors:
        text += f", {errors.total()} of them errors"
    if batch.num_repeated:
        text += f"; lines that repeat another one: {batch.num_repeated}"
    print(text)


def _show_help() -> None:
    from core.args.show import Section, show

    row = ("[MODEL] [ARGUMENTS]", "As of core serve, without --url; without MODEL the embedded one.")
    arguments = Section("Engine", (row,))
    show(USAGE, SUMMARY, [option_section("Options", RunBatchOptions), arguments])
