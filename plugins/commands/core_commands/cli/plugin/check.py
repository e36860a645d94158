"""`core plugins check NAME...`: the conformance suite of each named plugin, as a table or as JSON.

Owns: the command's arguments, and the report. Never does: check anything itself (`core_kit` does).
Called by: `core plugins`. Exit codes: 0 if every check passes, otherwise 1.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from core.api.config import ResolvedPlugin
from core.api.errors import UserError, nearest
from core.args.show import Section, show
from core.commands.tables import print_json
from core.commands.words import take_help, take_switch, take_value
from core.plugin.discovery import origin
from core.plugin.registry import PluginRegistry
from core.plugin.words import matching, of_distribution, unknown
from core_kit.case import Finding, Verdict
from core_kit.runner import TIME_LIMIT, Task, findings
from core_kit.suite import TAKES_MODEL

MARKS: dict[Verdict, str] = {"passed": "✓", "failed": "✗", "warned": "!", "skipped": "–"}
STYLES = {"passed": "green", "failed": "red", "warned": "yellow", "skipped": "dim"}
OPTIONS = ("--json", "--model", "--reference", "--arguments", "--plugins", "--time-limit")
ROWS = (
    ("NAME", "A plugin (NAME, KIND.NAME or DISTRIBUTION:NAME), or a distribution: all its plugins."),
    ("--model PATH", "A small checkpoint in the plugin's own format; other kinds of a package do without."),
    ("--reference PATH", "The same checkpoint in plain numbers, to compare packed values with."),
    ("--arguments JSON", "The plugin's own arguments."),
    ("--plugins WORDS", "As for `core serve`: also ./file.py or module:object."),
    ("--time-limit SECONDS", f"For each plugin. Default: {TIME_LIMIT:g}."),
    ("--json", "The findings as JSON."),
)


def check(words: list[str]) -> int:
    """Check plugins; returns the exit code."""
    if take_help(words) is not None:
        show("core plugins check NAME...", "Try whether plugins keep their promises.", [Section("Options", ROWS)])
        return 0
    as_json = take_switch(words, "--json")
    limit = _seconds(take_value(words, "--time-limit"))
    asked = _asked(words)
    registry = PluginRegistry(words=asked.plugins)
    rows = list(dict.fromkeys(row for word in words or [""] for row in named_rows(registry, word)))
    if asked.model is not None and not any(row.kind in TAKES_MODEL for row in rows):
        kinds = " or ".join(dict.fromkeys(row.kind for row in rows))
        raise UserError(
            f"--model {asked.model}: plugins of kind {kinds} are checked without a checkpoint; leave it out."
        )
    report: list[dict[str, Any]] = []
    for row in rows:
        found = _printed(row, findings(_task(row, asked), limit), quiet=as_json)
        report.append(_entry(row, found))
    if as_json:
        print_json(report)
    return 1 if any(entry["failed"] for entry in report) else 0


def _asked(words: list[str]) -> Task:
    """Parse everything except the plugin names, which stay in `words`. Raises UserError."""
    asked = Task(
        kind="",
        name="",
        model=take_value(words, "--model"),
        reference=take_value(words, "--reference"),
        arguments=_arguments(take_value(words, "--arguments")),
        plugins=take_value(words, "--plugins") or os.environ.get("CORE_PLUGINS"),
    )
    for word in words:
        if word.startswith("-"):
            raise UserError(f"core plugins check {word}: unexpected argument.{nearest(word, OPTIONS)}")
    return asked


def _task(row: ResolvedPlugin, asked: Task) -> Task:
    """Return the task for one plugin; a checkpoint is passed only to kinds that take one."""
    name = f"{row.distribution}:{row.name}" if row.distribution else row.name
    task = msgspec.structs.replace(asked, kind=row.kind, name=name)
    return task if row.kind in TAKES_MODEL else msgspec.structs.replace(task, model=None, reference=None)


def named_rows(registry: PluginRegistry, word: str) -> list[ResolvedPlugin]:
    """Return the rows that a word names: a distribution's, or those of a plugin in every kind. Raises UserError."""
    rows = registry.rows()
    if not word:
        raise UserError("core plugins check NAME: name a plugin or a distribution; `core plugins list` shows them.")
    found = of_distribution(rows, word) or matching(rows, word)
    if not found:
        raise UserError(
            f"core plugins check {word}: {unknown(rows, word)} A new package is found once it is installed: "
            "pip install -e FOLDER."
        )
    return found


def _printed(row: ResolvedPlugin, found: Iterator[Finding], quiet: bool) -> list[Finding]:
    """Print findings as they arrive, and return all of them."""
    if quiet:
        return list(found)
    print(f"{row.kind}.{row.name}  ({origin(row)})")
    kept = []
    for finding in found:
        kept.append(finding)
        _print(finding)
    counts = Counter(finding.verdict for finding in kept)
    print("  " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in MARKS if counts[verdict]) + "\n", flush=True)
    return kept


def _print(finding: Finding) -> None:
    line = f"  {MARKS[finding.verdict]} {finding.check}"
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        Console(soft_wrap=True).print(Text(line, style=STYLES[finding.verdict]))
    else:
        print(line, flush=True)
    if finding.sentence:
        print(f"      {finding.sentence}", flush=True)


def _entry(row: ResolvedPlugin, found: Sequence[Finding]) -> dict[str, Any]:
    counts = Counter(finding.verdict for finding in found)
    return {
        "kind": row.kind,
        "name": row.name,
        "distribution": row.distribution,
        "version": row.version,
        **{str(verdict): counts[verdict] for verdict in MARKS},
        "findings": [msgspec.to_builtins(finding) for finding in found],
    }


def _arguments(text: str | None) -> dict[str, object]:
    try:
        values = json.loads(text or "{}")
    except ValueError as error:
        raise UserError(f"--arguments {text}: not JSON: {error}.") from None
    if not isinstance(values, dict):
        raise UserError(f'--arguments {text}: expected a JSON object, such as {{"key": 1}}.')
    return values


def _seconds(text: str | None) -> float:
    try:
        seconds = TIME_LIMIT if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise UserError(f"--time-limit {text}: expected a number of seconds above 0.")
    return seconds
