"""`core plugins show NAME | explain [MODEL]`.

Owns: the output of both commands, as text and as JSON. Never does: load a plugin's implementation. Called by: the frame.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from core.api.errors import UserError
from core.args.show import show
from core.commands.plugins_list import as_row
from core.commands.tables import print_json
from core.commands.words import refuse_words, take_help, take_switch, take_value
from core.plugin.listing import Listed, listing
from core.plugin.registry import PluginRegistry
from core.plugin.words import matching, unknown
from core_commands.cli.plugin.help import own_arguments

ARGUMENT = ("flag", "type", "help")
SHOW = "core plugins show [KIND.]NAME [--json] [--plugins WORDS]"
EXPLAIN = "core plugins explain [MODEL] [ARGUMENTS] [--json]"


def plugins_show(words: list[str]) -> int:
    """Run `core plugins show`; returns the exit code."""
    if take_help(words) is not None:
        show(SHOW, "One plugin: what it is, what it takes, why it is broken.", [])
        return 0
    as_json = take_switch(words, "--json")
    registry = PluginRegistry(words=take_value(words, "--plugins") or os.environ.get("CORE_PLUGINS"))
    if not words:
        raise UserError("core plugins show: name a plugin, such as cpu or attention.torch_sdpa.")
    name = words.pop(0)
    refuse_words("core plugins show", words, ("--json", "--plugins"))
    rows = matching(registry.rows(), name)
    if not rows:
        raise UserError(f"core plugins show {name}: {unknown(registry.rows(), name)}")
    found = [item for item in listing(registry) if item.row in rows]
    details = [as_row(item) | _details(item) for item in found]
    if as_json:
        print_json(details)
        return 0
    for number, detail in enumerate(details):
        if number:
            print()
        _print_detail(detail)
    return 0


def _print_detail(detail: dict[str, Any]) -> None:
    for key, value in detail.items():
        if value not in (None, "", [], {}):
            _print_entry(key, value)


def plugins_explain(words: list[str]) -> int:
    """Run `core plugins explain`; returns the exit code."""
    from core_commands.cli.config import explain

    return explain(words, EXPLAIN, "What `core serve` would use with these arguments, and why.")


def _details(item: Listed) -> dict[str, Any]:
    """Return the details that `show` adds to a row."""
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
