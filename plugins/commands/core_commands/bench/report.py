"""Output of results as a table and as files.

Owns: the rows of the table, names of files. Never does: compute. Called by: the commands.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from core.api.errors import UserError
from core.commands.printable import safe
from core_commands.bench.figures import TITLES
from core_commands.cli.own_files import own_path, write_whole

WIDTH = 60
DETAILS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "request_errors")
"""Fields with an entry per request, which tables omit."""
SLOW_SENDING_MS = 100.0
HEAD_ROWS = (
    ("completed", "Successful requests", "d"),
    ("failed", "Failed requests", "d"),
    ("max_concurrency", "Most requests at once, as asked", "d"),
    ("request_rate", "Requests a second, as asked", ""),
    ("duration", "Duration (s)", ".2f"),
    ("total_input_tokens", "Input tokens", "d"),
    ("total_output_tokens", "Output tokens", "d"),
    ("request_throughput", "Requests a second", ".2f"),
    ("request_goodput", "Good requests a second", ".2f"),
    ("output_throughput", "Output tokens a second", ".2f"),
    ("total_token_throughput", "All tokens a second", ".2f"),
    ("max_concurrent_requests", "Most requests at once", "d"),
)
"""Rows at the head of the table: field, title, format."""


def serving_table(result: Mapping[str, Any]) -> str:
    """Format the result of `bench serve` as a table."""
    lines = ["Serving benchmark".center(WIDTH, "=")]
    for name, title, form in HEAD_ROWS:
        if result.get(name) is not None:
            lines.append(_row(title, format(result[name], form)))
    for metric, title in TITLES.items():
        rows = _metric_rows(result, metric)
        if rows:
            lines += [title.center(WIDTH, "-"), *rows]
    lines.append("=" * WIDTH)
    lines += [f"Failed: {safe(error)}" for error in result.get("errors") or ()]
    return "\n".join([*lines, *_remarks(result)])


def _remarks(result: Mapping[str, Any]) -> list[str]:
    """Return remarks that a reader needs to interpret the figures."""
    remarks: list[str] = []
    uncounted = result.get("completed_without_usage", 0)
    if uncounted:
        remarks.append(
            f"Answers without usage: {uncounted}. Each part of them counts as a token, though it may hold several; their "
            "prompts count as none."
        )
    empty = result.get("completed_without_text", 0)
    if empty:
        remarks.append(f"Answers without text: {empty}. With --ignore-eos answers are as long as asked for.")
    delay = result.get("max_send_delay_ms", 0.0)
    if delay > SLOW_SENDING_MS:
        remarks.append(f"Requests were sent up to {delay:.0f} ms late: this machine cannot send as fast as asked.")
    return remarks


def plain_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Format a table of (title, value)."""
    lines = [title.center(WIDTH, "=")]
    lines += [_row(name, value) for name, value in rows]
    return "\n".join([*lines, "=" * WIDTH])


def write_json(path: Path, value: Any, *, append: bool = False) -> None:
    """Write a result as indented JSON, or with `append` as one more line. Raises UserError."""
    text = msgspec.json.encode(value)
    make_directory(path.parent)
    if not append:
        write_whole(path, msgspec.json.format(text, indent=2) + b"\n")
        return
    try:
        with path.open("ab") as file:
            file.write(text + b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}.") from None


def make_directory(path: Path) -> None:
    """Create a directory for results. Raises UserError where it cannot be created or written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be made a directory: {error.strerror}.") from None
    if not os.access(path, os.W_OK):
        raise UserError(f"{path}: nothing can be written there; name another directory.")


def result_path(result: Mapping[str, Any], directory: str | None, name: str | None) -> Path:
    """Return the path for the result of `bench serve`."""
    if name is None:
        model = str(result["model_id"]).rsplit("/", 1)[-1]
        limit = result["max_concurrency"]
        suffix = "" if limit is None else f"-concurrency{limit}"
        name = f"{result['backend']}-{result['request_rate']}qps{suffix}-{model}-{result['date']}.json"
    return own_path(directory or ".") / name


def without_details(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result without its per-request fields."""
    return {name: value for name, value in result.items() if name not in DETAILS}


def _metric_rows(result: Mapping[str, Any], metric: str) -> list[str]:
    """Format mean, median and percentiles of one metric, where available."""
    suffix = f"_{metric}_ms"
    rows: list[str] = []
    for name, value in result.items():
        if name.endswith(suffix):
            kind = name.removesuffix(suffix).capitalize()
            rows.append(_row(f"{kind} {metric.upper()} (ms)", f"{value:.2f}"))
    return rows


def _row(title: str, value: str) -> str:
    return f"{title + ':':<42}{value:>{WIDTH - 42}}"
