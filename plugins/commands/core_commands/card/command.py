"""`core bench card [MODEL] [ARGUMENTS]`: how close to the machine's limits a model runs, and what would help.

Owns: the order of the command's work, and its output. Never does: measure or compute a share (`core_commands.card` does).
Called by: `core bench`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.api.errors import CoreError, UserError
from core.commands.tables import print_json
from core_commands.card.options import CardOptions
from core_commands.cli.options import parse_engine_arguments
from core_commands.cli.own_files import own_path
from core_commands.cli.own_options import own_flags, take_options

if TYPE_CHECKING:
    from core_commands.card.card import Round
    from core_commands.card.timings import Lengths
    from core_config.resolve import Resolution

SPARE = 8
"""Tokens of the longest request that are left free."""
LEAST_CONTEXT = 1024


def card(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    options = take_options(CardOptions, words)
    parsed = parse_engine_arguments(words, own_flags(CardOptions))
    from core_commands.bench import report as files
    from core_commands.card import report
    from core_commands.card.card import advice, rows
    from core_config.resolve import resolve

    def again(further: Mapping[str, Any]) -> Resolution:
        return resolve({**parsed.values, **further}, context="serve", problems=parsed.problems)

    def maybe(further: Mapping[str, Any]) -> Resolution | None:
        try:
            return again(further)
        except CoreError:  # this model does not take the argument, so it is no advice
            return None

    base = again({})
    work = base.work()
    _check(base, has_work=work is not None)
    assert work is not None, "checked above"
    output = None if options.output_json is None else own_path(options.output_json)
    if output is not None:
        files.make_directory(output.parent)
    lengths = lengths_of(options, min(base.memory.max_model_len, base.memory.tokens))
    rounds = _rounds(options, base, lengths, work.vocab_size)
    parts = rows(work, lengths, rounds)
    advices = advice(base, lengths, rounds, maybe)
    values = report.as_values(base.engine.model.model, parts, advices, rounds)
    if options.json:
        print_json(values)
    else:
        print(report.as_text(parts, advices, rounds))
    if output is not None:
        files.write_json(output, values)
    return 0


def lengths_of(options: CardOptions, most: int) -> Lengths:
    """Return the lengths of what is timed. most: tokens of the longest request. Raises UserError."""
    from core_commands.card.timings import Lengths

    room = most - options.answer_len - SPARE
    if room < 2 * options.answer_len:
        raise UserError(
            f"--answer-len {options.answer_len}: the longest request has {most} tokens; give fewer, or a --max-model-len."
        )
    context = min(options.context_len, room)
    return Lengths(min(options.prompt_len, room), context if context >= LEAST_CONTEXT else 0, options.answer_len)


def _check(base: Resolution, *, has_work: bool) -> None:
    """Raise UserError for what the card has no limits or no work for."""
    if not base.engine.device.startswith("cpu"):
        raise UserError(
            f"--device {base.engine.device}: the card knows the limits of processors alone; core bench latency times any."
        )
    if not has_work:
        raise UserError(
            f"{base.engine.model.model}: its matrices are not known from its shape; core bench latency times it."
        )
    if base.arguments["runner"][0] == "pooling":
        raise UserError(
            f"{base.engine.model.model}: it pools instead of generating; core bench serve times its answers."
        )


def _rounds(options: CardOptions, base: Resolution, lengths: Lengths, vocab_size: int) -> list[Round]:
    """Start a server and return its rounds. Raises UserError, CoreError."""
    from core_commands.card.card import Round
    from core_commands.card.limits import Limits, limits
    from core_commands.card.timings import run_rounds
    from core_commands.client.own_server import own_server
    from core_commands.client.server_process import ServerError

    values = {**base.given, "model": base.engine.model.model}
    print(f"Starting {base.engine.model.served_names[0]} ...", file=sys.stderr)
    before: list[Limits] = []
    with tempfile.TemporaryDirectory(prefix="core-card-") as directory:
        try:
            with own_server(values, Path(directory), 0, options.start_timeout) as url:
                times = run_rounds(url, vocab_size, lengths, before, options.rounds, limits)
        except ServerError as error:
            raise CoreError(f"The server does not start: {error}.") from None
    return [Round(*pair) for pair in zip(before, times, strict=True)]
