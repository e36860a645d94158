"""`core models [list] | explain PATH`: the supported models, and the report on one checkpoint.

Owns: the output of these commands, as text and as JSON. Never does: import torch, read a weight. Called by: the frame.
"""

from __future__ import annotations

import os
import textwrap
from typing import Any

from core.api.errors import UserError, nearest
from core.args.show import Section, show
from core.commands.tables import print_json, print_table
from core.commands.words import take_help, take_switch, take_value
from core.plugin.discovery import origin
from core.plugin.listing import listing
from core.plugin.registry import PluginRegistry
from core_commands.cli.model_report import ModelReport, model_report
from core_commands.cli.options import parse_engine_arguments, show_engine_help
from core_config.stages.memory import human_bytes
from core_config.stages.tensor_groups import TensorGroup
from core_runtime.models.families import families

COMMANDS = ("list", "explain")
LIST = "Every family that can be served: the table's rows, and plugins."
EXPLAIN = "Which row takes a checkpoint, what is read, what is ignored and why, what is refused."
USAGE = "core models explain PATH [ARGUMENTS] [--json]"
WIDTH = 120


def models(words: list[str]) -> int:
    """Run a subcommand; returns the exit code."""
    command = words[0] if words and not words[0].startswith("-") else "list"
    rest = words[1:] if words and words[0] == command else words
    if command == "explain":
        return _explain(rest)
    if command != "list":
        raise UserError(f"core models {command}: unknown; known: {', '.join(COMMANDS)}.{nearest(command, COMMANDS)}")
    if take_help(rest) is not None:
        rows = (("[list] [--json] [--plugins WORDS]", LIST), ("explain PATH [ARGUMENTS] [--json]", EXPLAIN))
        show("core models [COMMAND]", "Look at model families and checkpoints.", [Section("Commands", rows)])
        return 0
    return _list(rest)


def _list(words: list[str]) -> int:
    as_json = take_switch(words, "--json")
    registry = PluginRegistry(words=take_value(words, "--plugins") or os.environ.get("CORE_PLUGINS"))
    if words:
        raise UserError(
            f"core models {words[0]}: unexpected argument.{nearest(words[0], ('--json', '--plugins', *COMMANDS))}"
        )
    found = [*_rows(), *_plugins(registry)]
    if as_json:
        print_json(found)
        return 0
    heads = ("family", "from", "model types", "text of", "architectures")
    cells: list[list[str]] = []
    for row in found:
        names = [", ".join(row[key]) for key in ("model_types", "wrappers", "architectures")]
        cells.append([row["family"], row["from"], *names])
    print_table(heads, cells)
    return 0


def _rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for row in families():
        found.append(
            {
                "family": row.name,
                "architectures": list(row.architectures),
                "model_types": list(row.model_types),
                "wrappers": list(row.wrappers),
                "from": "table",
                "summary": "",
            }
        )
    return found


def _plugins(registry: PluginRegistry) -> list[dict[str, Any]]:
    """Return plugins of kind `model`; they decide about a checkpoint only when they see it."""
    if not registry.rows("model"):
        return []
    found: list[dict[str, Any]] = []
    for item in listing(registry):
        if item.row.kind != "model":
            continue
        summary = item.reason if item.manifest is None else item.manifest.spec.summary
        found.append(
            {
                "family": item.row.name,
                "architectures": [],
                "model_types": [],
                "wrappers": [],
                "from": f"plugin of {origin(item.row)}, {item.status}",
                "summary": summary,
            }
        )
    return found


def _explain(words: list[str]) -> int:
    """Run `core models explain`; returns 2 when the checkpoint would be refused."""
    wanted = take_help(words)
    if wanted is not None:
        show_engine_help(USAGE, EXPLAIN, wanted)
        return 0
    as_json = take_switch(words, "--json")
    parsed = parse_engine_arguments(words)
    report = model_report(parsed.values, parsed.problems)
    report.warnings = [*parsed.warnings, *report.warnings]
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    return 2 if report.refused else 0


def _print_report(report: ModelReport) -> None:
    print(f"model         {report.model} ({report.format})")
    print(f"architecture  {', '.join(report.architectures) or 'none given'}; model_type {report.model_type or 'none'}")
    print(f"read by       {report.reader or 'nobody'}")
    print(f"quantization  {report.quantization or 'none'}")
    for warning in report.warnings:
        print(f"warning       {warning}")
    if report.shape is not None:
        print(f"\n{textwrap.fill(report.shape.paragraph(), WIDTH)}")
    if report.uses:
        print("\nWhat it can do")
        for name, how in report.uses.items():
            print(textwrap.fill(how, WIDTH, initial_indent=f"  {name:<14}", subsequent_indent=" " * 16))
    _print_groups("Tensors that are read", report.tensors)
    _print_groups("Tensors that are ignored, because:", report.ignored)
    if report.keys_read:
        print("\nKeys of the configuration that are read")
        shown = textwrap.fill(", ".join(report.keys_read), WIDTH, initial_indent="  ", subsequent_indent="  ")
        print(shown)
    if report.keys_neutral:
        print("\nKeys that change nothing, because:")
        print_table(("  key", "reason"), [[f"  {key}", why] for key, why in report.keys_neutral.items()])
    if report.keys_unknown:
        print(f"\nKeys that no known model has: {', '.join(report.keys_unknown)}")
    print("\nRefused, because:" if report.refused else "\nNothing is refused.")
    for problem in report.refused:
        print(f"  - {problem}")


def _print_groups(title: str, groups: list[TensorGroup]) -> None:
    if not groups:
        return
    print(f"\n{title}")
    rows = []
    for group in groups:
        examples = ", ".join(group.examples) + (", ..." if group.count > len(group.examples) else "")
        rows.append([f"  {group.name}", str(group.count), human_bytes(group.nbytes), examples])
    print_table(("  what", "tensors", "size", "such as"), rows)
