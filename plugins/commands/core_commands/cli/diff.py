"""`core diff RECORDS --right ARGUMENTS`: how the answers of two engines to recorded requests differ.

Owns: the command's arguments, the order of the two sides, and its last lines. Never does: compare (`replay.comparison` does).
Called by: the frame.
"""

import asyncio
import os
import shlex
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from core.api.errors import ConfigError, CoreError, UserError
from core.args.arg import Arg
from core.commands.words import take_help
from core_commands.cli.options import parse_engine_arguments
from core_commands.cli.own_files import check_place, write_whole
from core_commands.cli.own_options import option_section, refuse_rest, take_options

if TYPE_CHECKING:
    from core_apis.traffic.records import TrafficRecord
    from core_commands.replay.comparison import Comparison, Recorded
    from core_commands.replay.engine import ReplayEngine
    from core_commands.replay.side_by_side import Running
    from core_config.arguments.parser import Parsed

USAGE = "core diff RECORDS|JOURNAL [--left ARGUMENTS] --right ARGUMENTS | --url URL | --right-cmd COMMAND"
SUMMARY = (
    "Answer recorded requests (core serve --record-traffic) again, and show where another engine goes another way: by token, "
    "tool call and JSON value, and in speed and memory."
)
KINDS = ("token", "json", "tool_call")


class DiffOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of diff."""

    left: Annotated[
        str | None,
        Arg(
            "Arguments of the left engine, in quotes: it answers again. Unset: left is what was recorded.",
            metavar="ARGUMENTS",
        ),
    ] = None
    right: Annotated[
        str | None, Arg("Arguments of the right engine, in quotes: a model and others.", metavar="ARGUMENTS")
    ] = None
    url: Annotated[str | None, Arg("A server as the right side; needs --left. Texts and values are compared.")] = None
    right_cmd: Annotated[
        str | None,
        Arg(
            "A command that serves the right side, such as that of another installation; needs --left.",
            metavar="COMMAND",
        ),
    ] = None
    api_key: Annotated[str | None, Arg("With --url: key of the server. Unset: CORE_API_KEY.", secret=True)] = None
    limit: Annotated[int | None, Arg("Most requests, the newest ones.", ge=1)] = None
    tenant: Annotated[
        str | None, Arg("Only records of this tenant: the beginning of its digest.", metavar="DIGEST")
    ] = None
    speed_seconds: Annotated[
        float,
        Arg(
            "With --left: about how long both sides take turns as servers, to compare speed and memory; 0 leaves that out.",
            ge=0,
            le=86400,
        ),
    ] = 60.0
    report: Annotated[str, Arg("File for the report, one static HTML page.", metavar="FILE")] = "report.html"
    json: Annotated[str | None, Arg("File for everything as JSON.", metavar="FILE")] = None
    fail_on: Annotated[
        list[str] | None, Arg("Exit with 1 if any request differs in this.", choices=KINDS, commas=True)
    ] = None


def diff(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    if take_help(words) is not None:
        _show_help()
        return 0
    options = take_options(DiffOptions, _joined(words))
    if not words or words[0].startswith("-"):
        raise UserError(f"The directory of records is missing: {USAGE}.")
    source = words.pop(0)
    refuse_rest("diff", words, DiffOptions)
    _check(options)
    places = [check_place(name) for name in (options.report, options.json) if name is not None]
    parsed = {name: _parsed(name, text) for name in ("left", "right") if (text := getattr(options, name)) is not None}
    records = _records(source, options)
    comparison = _compared(options, parsed, records)
    _say(comparison, options)
    _write(comparison, places)
    failing = [kind for kind in options.fail_on or () if comparison.count(kind)]
    return 1 if failing else 0


def _joined(words: list[str]) -> list[str]:
    """Write `--right WORDS` as `--right=WORDS` in place, since these words may begin with a dash themselves."""
    for place in range(len(words) - 1, 0, -1):
        if words[place - 1] in ("--left", "--right", "--right-cmd"):
            words[place - 1 : place + 1] = [f"{words[place - 1]}={words[place]}"]
    return words


def _check(options: DiffOptions) -> None:
    given = [name for name in ("right", "url", "right_cmd") if getattr(options, name) is not None]
    if len(given) != 1:
        raise UserError("Expected one right side: --right ARGUMENTS, --url URL or --right-cmd COMMAND.")
    if given[0] != "right" and options.left is None:
        flag = "--" + given[0].replace("_", "-")
        raise UserError(f"{flag}: needs --left ARGUMENTS, an engine that knows the texts of the recorded tokens.")


def _parsed(name: str, text: str) -> "Parsed":
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--{name} {text}: {error}.") from None
    parsed = parse_engine_arguments(words)
    if parsed.problems:
        raise ConfigError([f"--{name}: {problem}" for problem in parsed.problems])
    return parsed


def _records(source: str, options: DiffOptions) -> "list[Recorded]":
    """Return the records to compare, oldest first. Raises UserError."""
    from core_apis.journal.browsing import Budget
    from core_apis.traffic.records import read_traffic
    from core_commands.replay.journal import is_journal

    if options.left is not None and is_journal(source):
        return _of_journal(source, options)
    found: deque[Recorded] = deque()
    budget = Budget(source)
    num_unreadable = 0
    for number, record in enumerate(read_traffic(source)):
        if record is not None and not record.tenant.hex().startswith(options.tenant or ""):
            continue
        one = None if record is None else recorded(number, record)
        if one is None:
            num_unreadable += 1
            continue
        found.append(one)
        budget.take(one.num_bytes)
        if options.limit is not None and len(found) > options.limit:
            budget.take(-found.popleft().num_bytes)
    if num_unreadable:
        print(
            f"core diff: records of another version, or whose parts do not fit together, and are left out: {num_unreadable}.",
            file=sys.stderr,
        )
    return _newest(source, list(found), options)


def _of_journal(source: str, options: DiffOptions) -> "list[Recorded]":
    """Return the requests of a journal, which have no answers yet. Raises UserError."""
    from core_commands.replay.journal import read_requests

    if options.right is None:
        raise UserError(
            f"{source}: requests of a journal are token ids, which another server's tokenizer may not mean; give the right "
            "engine's arguments: --right ARGUMENTS."
        )
    chosen = options.tenant or ""
    rows = [one for tenant, one in read_requests(source) if tenant.hex().startswith(chosen)]
    found = [one for one in rows if one is not None]
    if len(found) < len(rows):
        print(
            f"core diff: requests of the journal that are more than one text of tokens, or of another version, and are left "
            f"out: {len(rows) - len(found)}.",
            file=sys.stderr,
        )
    return _newest(source, found, options)


def _newest(source: str, found: "list[Recorded]", options: DiffOptions) -> "list[Recorded]":
    if not found:
        raise UserError(f"{source}: none of its records fits; leave out --tenant, or record more.")
    return found if options.limit is None else found[-options.limit :]


def recorded(number: int, record: "TrafficRecord") -> "Recorded | None":
    """Return a record as it is compared; None if its parts do not fit together."""
    from core_commands.replay.comparison import Recorded

    try:
        return Recorded.of(number, record)
    except (msgspec.DecodeError, KeyError, ValueError, TypeError):
        return None


def _compared(options: DiffOptions, parsed: "dict[str, Parsed]", records: "list[Recorded]") -> "Comparison":
    from core_commands.replay.comparison import Comparison, compare
    from core_commands.replay.engine import run_replay
    from core_commands.replay.servers import ask_all, started
    from core_commands.replay.side_by_side import Running
    from core_commands.several.entries import planned_bytes

    left = "as recorded" if options.left is None else options.left
    comparison = Comparison(left, options.right or options.url or options.right_cmd or "")
    measured = _speed(options, parsed, records, comparison)
    if "left" in parsed:
        _answer_again(parsed["left"], records, comparison)
    if "right" in parsed:

        async def work(engine: "ReplayEngine") -> int:
            comparison.planned["right"] = planned_bytes(engine.resolution)
            for record in records:
                await compare(engine, record, comparison)
            return 0

        run_replay(parsed["right"], work)
        measured(None)
    # A server that runs is measured first: the comparison would fill its cache of prefixes.
    elif options.url is not None:
        key = options.api_key or os.environ.get("CORE_API_KEY")
        measured(Running(options.url, key))
        asyncio.run(ask_all(options.url, key, records, comparison, is_ours=False))
    elif options.right_cmd is not None:
        with started(options.right_cmd) as (url, pid):
            measured(Running(url, pid=pid))
            asyncio.run(ask_all(url, None, records, comparison, is_ours=True))
    return comparison


def _speed(
    options: DiffOptions, parsed: "dict[str, Parsed]", records: "list[Recorded]", comparison: "Comparison"
) -> "Callable[[Running | None], None]":
    """Return what measures speed and memory, given the right side if it runs already. Raises ConfigError."""
    from core_commands.replay.side_by_side import OFF, Plan, measure
    from core_commands.replay.speed import NAMES, Speed

    if "left" not in parsed:  # a comparison without a left engine says so itself
        return lambda right: None
    # Resolved before the engines that compare get arguments of their own.
    plans = {name: Plan.of(parsed[name]) for name in NAMES if name in parsed} if options.speed_seconds else {}

    def measured(right: "Running | None") -> None:
        if not plans:
            comparison.speed = Speed(reason=OFF)
            return
        print("Comparing speed and memory ...", file=sys.stderr)
        comparison.speed = measure(plans, right, records, options.speed_seconds)

    return measured


def _answer_again(parsed: "Parsed", records: "list[Recorded]", comparison: "Comparison") -> None:
    """Replace the recorded answers by those of the left engine. Requests that it refuses leave the list, with their reason."""
    from core_commands.replay.comparison import RecordDifference, question_of
    from core_commands.replay.engine import run_replay
    from core_commands.several.entries import planned_bytes

    async def work(engine: "ReplayEngine") -> int:
        comparison.planned["left"] = planned_bytes(engine.resolution)
        for record in records.copy():
            try:
                body = await engine.renamed(record.body, adapted=bool(record.adapter))
                record.answered(*await engine.compute(record.path, body, record.given(), record.seeds))
            except CoreError as error:
                records.remove(record)
                comparison.num_requests += 1
                row = RecordDifference(record.number, record.path, question_of(record.body))
                row.problem = f"Left: {error}"
                comparison.rows.append(row)
        return 0

    run_replay(parsed, work)


def _write(comparison: "Comparison", places: "list[Path]") -> None:
    """Write the report, and everything as JSON where there is a second place. Raises UserError on a full disk."""
    from core_commands.replay.report import as_html, as_json

    for place, write in zip(places, (as_html, as_json), strict=False):
        write_whole(place, write(comparison))
    print(f"{places[0]}: the report, worst first.")


def _say(comparison: "Comparison", options: DiffOptions) -> None:
    """Print the counts. They come before anything is written, so that a full disk costs only the report."""
    print(f"{comparison.num_requests} requests, {comparison.num_tokens} tokens; {len(comparison.rows)} differ.")
    for kind, name in zip(KINDS, ("a token", "a JSON value", "a tool call"), strict=True):
        print(f"  in {name}: {comparison.count(kind)}")
    if options.left is not None:
        for name, value in comparison.speed.lines():
            print(f"  {name}: {value}")
    for cause, name in (("adapter", "another adapter"), ("inputs", "other pictures or embeddings")):
        if comparison.causes[cause]:
            print(f"  with {name} on the right side: {comparison.causes[cause]}")


def _show_help() -> None:
    from core.args.show import show

    show(USAGE, SUMMARY, [option_section("Options", DiffOptions)])
