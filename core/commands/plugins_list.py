"""The command `core plugins list`, which prints every installed plugin with its status.

Owns: the output of this command, as text and as JSON. Never does: load a plugin's implementation. Called by: the frame;
`as_row` by `core plugins show`.
"""

from __future__ import annotations

import os
from typing import Any, Final

from core.api.errors import UserError, nearest
from core.args.show import Section, show
from core.commands.tables import print_json, print_table
from core.commands.words import refuse_words, take_help, take_switch, take_value
from core.plugin.kinds import KINDS
from core.plugin.listing import Listed, listing
from core.plugin.registry import PluginRegistry

LONGEST_REASON: Final = 160
COLUMNS: Final = ("kind", "name", "distribution", "version", "status", "reason")
FLAGS: Final = ("--json", "--kind", "--plugins")
ROWS: Final = (
    ("--kind=KIND", "Plugins of one kind only."),
    ("--json", "As JSON, with whole reasons."),
    ("--plugins WORDS", "As for `core serve`: NAME, KIND.NAME, PACKAGE, no:..., ./file.py, module:object."),
)


def plugins_list(words: list[str]) -> int:
    """Run the command with the words after its name; return the exit code."""
    if take_help(words) is not None:
        usage = "core plugins list [--kind=KIND] [--json] [--plugins WORDS]"
        show(usage, "Every plugin that is installed, and whether it can be used.", [Section("Options", ROWS)])
        return 0
    as_json = take_switch(words, "--json")
    kind = take_value(words, "--kind")
    registry = PluginRegistry(words=take_value(words, "--plugins") or os.environ.get("CORE_PLUGINS"))
    refuse_words("core plugins list", words, FLAGS)
    kinds = [known.name for known in KINDS]
    if kind is not None and kind not in kinds:
        raise UserError(f"--kind {kind}: no such kind; known: {', '.join(kinds)}.{nearest(kind, kinds)}")
    listed = [as_row(item) for item in listing(registry) if kind in (None, item.row.kind)]
    if as_json:
        print_json(listed)
        return 0
    rows = []
    for row in listed:
        row["reason"] = _first_line(row["reason"])
        rows.append([str(row[head] or "") for head in COLUMNS])
    print_table(COLUMNS, rows, colour="status", num_names=2)
    return 0


def as_row(item: Listed) -> dict[str, Any]:
    """Return the fields of one plugin, as the JSON output has them."""
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


def _first_line(text: str | None) -> str:
    return text.splitlines()[0][:LONGEST_REASON] if text else ""
