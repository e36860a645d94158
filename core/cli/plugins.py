"""`core plugins list | show NAME | explain [MODEL] | check NAME | new KIND NAME`.

Owns: the output of these commands, as text and as JSON. Never does: load a plugin's implementation.
Called by: main. `check` and `new` have files of their own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from core.api.errors import UserError, nearest
from core.args.show import Section, show
from core.cli.options import parse_engine_arguments, show_engine_help, take_help, take_switch, take_value
from core.cli.plugin_help import own_arguments
from core.cli.tables import print_json, print_table
from core.plugin.kinds import KINDS
from core.plugin.listing import Listed, listing
from core.plugin.registry import PluginRegistry
from core.plugin.words import matching, unknown

LONGEST_REASON = 160
COMMANDS = ("list", "show", "explain", "check", "new")
ARGUMENT = ("flag", "type", "help")
EXPLAIN = "core plugins explain [MODEL] [ARGUMENTS] [--json]"


def plugins(words: list[str]) -> int:
    """Dispatch; returns the exit code."""
    command = words[0] if words else ""
    rest = words[1:]
    if command == "explain":
        return _explain(rest)
    if command == "check":
        from core.cli.plugin_check import check

        return check(rest)
    if command == "new":
        from core.cli.plugin_new import new

        return new(rest)
    if command in ("", "-h", "--help") or take_help(rest) is not None:
        rows = (
            ("list [--kind=KIND] [--json]", "Every plugin that is installed, and whether it can be used."),
            ("show [KIND.]NAME [--json]", "One plugin: what it is, what it takes, why it is broken."),
            ("explain [MODEL] [ARGUMENTS] [--json]", "What `core serve` would use with these arguments, and why."),
            ("check NAME... [--json]", "Try whether plugins, or all plugins of a package, keep their promises."),
            (
                "new KIND NAME [--path DIR | --into PACKAGE]",
                "Write a plugin that works as written, or add one to a package.",
            ),
            ("--plugins WORDS", "As for `core serve`: NAME, KIND.NAME, PACKAGE, no:..., ./file.py, module:object."),
        )
        show("core plugins COMMAND", "Look at plugins, check them, write one.", [Section("Commands", rows)])
        return 0 if command else 2
    if command == "list":
        return _list(rest)
    if command == "show":
        return _show(rest)
    raise UserError(f"core plugins {command}: unknown; known: {', '.join(COMMANDS)}.{nearest(command, COMMANDS)}")


def _list(words: list[str]) -> int:
    as_json = take_switch(words, "--json")
    kind = take_value(words, "--kind")
    registry = PluginRegistry(words=take_value(words, "--plugins") or os.environ.get("CORE_PLUGINS"))
    _no_more("core plugins list", words, ("--json", "--kind", "--plugins"))
    kinds = [known.name for known in KINDS]
    if kind is not None and kind not in kinds:
        raise UserError(f"--kind {kind}: no such kind; known: {', '.join(kinds)}.{nearest(kind, kinds)}")
    listed = [_row(item) for item in listing(registry) if kind in (None, item.row.kind)]
    if as_json:
        print_json(listed)
        return 0
    heads = ("kind", "name", "distribution", "version", "status", "reason")
    rows = []
    for row in listed:
        row["reason"] = _first_line(row["reason"])
        rows.append([str(row[head] or "") for head in heads])
    print_table(heads, rows, colour="status", num_names=2)
    return 0


def _show(words: list[str]) -> int:
    as_json = take_switch(words, "--json")
    registry = PluginRegistry(words=take_value(words, "--plugins") or os.environ.get("CORE_PLUGINS"))
    if not words:
        raise UserError("core plugins show: name a plugin, such as cpu or attention.torch_sdpa.")
    name = words.pop(0)
    _no_more("core plugins show", words, ("--json", "--plugins"))
    rows = matching(registry.rows(), name)
    if not rows:
        raise UserError(f"core plugins show {name}: {unknown(registry.rows(), name)}")
    found = [item for item in listing(registry) if item.row in rows]
    details = [_row(item) | _details(item) for item in found]
    if as_json:
        print_json(details)
        return 0
    for number, detail in enumerate(details):
        if number:
            print()
        _print_detail(detail)
    return 0


def _first_line(text: str | None) -> str:
    return text.splitlines()[0][:LONGEST_REASON] if text else ""


def _print_detail(detail: dict[str, Any]) -> None:
    for key, value in detail.items():
        if value not in (None, "", [], {}):
            _print_entry(key, value)


def _explain(words: list[str]) -> int:
    wanted = take_help(words)
    if wanted is not None:
        show_engine_help(EXPLAIN, "What `core serve` would use with these arguments, and why.", wanted)
        return 0
    as_json = take_switch(words, "--json")
    from core.cli.explain import explanation, print_explanation
    from core.config.resolve import resolve

    parsed = parse_engine_arguments(words)
    resolution = resolve(parsed.values, context="explain", problems=parsed.problems)
    resolution.warnings[:0] = parsed.warnings
    if as_json:
        print_json(explanation(resolution))
    else:
        print_explanation(resolution)
    return 0


def _row(item: Listed) -> dict[str, Any]:
    row = item.row
    return {
        "kind": row.kind,
        "name": row.name,
        "distribution": row.distribution,
        "version": row.version,
        "contract": item.contract,
        "status": item.status,
        "reason": item.reason,
    }


def _details(item: Listed) -> dict[str, Any]:
    """The details that `show` adds to a row."""
    detail: dict[str, Any] = {"target": item.row.target}
    if item.manifest is not None:
        spec = item.manifest.spec
        detail |= {
            "summary": spec.summary,
            "priority": spec.priority,
            "alias_of": spec.alias_of,
            "capabilities": spec.capabilities,
            "constraints": spec.constraints,
            "arguments": [dict(zip(ARGUMENT, row, strict=True)) for row in own_arguments(item.manifest)],
        }
        log = Path(str(spec.capabilities.get("build_log", "")))
        if log.is_file():
            detail["build_error"] = log.read_text(encoding="utf-8", errors="replace")
    return detail | {"traceback": item.details}


def _print_entry(key: str, value: Any) -> None:
    if key == "arguments":
        print("arguments:")
        for argument in value:
            print(f"  {argument['flag']} {argument['type']}  {argument['help']}")
    elif isinstance(value, dict):
        print(f"{key}:")
        for name, entry in value.items():
            shown = ", ".join(str(part) for part in entry) if isinstance(entry, list) else entry
            print(f"  {name}: {shown}")
    elif "\n" in str(value):
        print(f"{key}:\n  " + str(value).rstrip().replace("\n", "\n  "))
    else:
        print(f"{key}: {value}")


def _no_more(command: str, words: list[str], valid: tuple[str, ...]) -> None:
    if words:
        raise UserError(f"{command} {words[0]}: unexpected argument.{nearest(words[0], valid)}")
