"""`core config explain | show | schema`.

Owns: the output of these commands. Never does: resolve or load a model. Called by: main.
"""

from __future__ import annotations

import sys

from core.api.errors import UserError, nearest
from core.args.show import Section, show
from core.cli.options import parse_engine_arguments, show_engine_help, take_help, take_switch
from core.cli.tables import print_json
from core.config.resolve import Resolution, resolve

COMMANDS = {
    "explain": (
        "[MODEL] [ARGUMENTS] [--json]",
        "Every value with its origin and reason, plugins, and the memory plan.",
    ),
    "show": ("[MODEL] [ARGUMENTS] [--secrets]", "The configuration as YAML, for --config."),
    "schema": ("", "JSON Schema (2020-12) of all arguments, those of available plugins included."),
}


def config(words: list[str]) -> int:
    """Dispatch; returns the exit code."""
    command, rest = (words[0], words[1:]) if words else ("", [])
    if command not in COMMANDS:
        if command and command not in ("-h", "--help"):
            known = ", ".join(COMMANDS)
            raise UserError(f"core config {command}: unknown; known: {known}.{nearest(command, COMMANDS)}")
        rows = []
        for name, (usage, text) in COMMANDS.items():
            rows.append((f"{name} {usage}".strip(), text))
        show("core config COMMAND", "Look at the configuration.", [Section("Commands", tuple(rows))])
        return 0 if command else 2
    usage, intro = COMMANDS[command]
    wanted = take_help(rest)
    if wanted is not None:
        show_engine_help(f"core config {command} {usage}".strip(), intro, wanted)
        return 0
    return {"explain": _explain, "show": _show, "schema": _schema}[command](rest)


def _explain(words: list[str]) -> int:
    from core.cli.explain import explanation, print_explanation

    as_json = take_switch(words, "--json")
    resolution = _resolved(words)
    if as_json:
        print_json(explanation(resolution))
    else:
        print_explanation(resolution)
    return 0


def _show(words: list[str]) -> int:
    from core.config.document import as_yaml

    secrets = take_switch(words, "--secrets")
    resolution = _resolved(words)
    for warning in resolution.warnings:
        print(f"core: warning: {warning}", file=sys.stderr)
    print(as_yaml(resolution, secrets=secrets), end="")
    return 0


def _schema(words: list[str]) -> int:
    from core.config.json_schema import json_schema
    from core.plugin.registry import PluginRegistry

    if words:
        raise UserError(f"core config schema {words[0]}: unexpected; the command takes no arguments.")
    print_json(json_schema(PluginRegistry()))
    return 0


def _resolved(words: list[str]) -> Resolution:
    """The configuration that `core serve` would run with these words."""
    parsed = parse_engine_arguments(words)
    resolution = resolve(parsed.values, context="explain", problems=parsed.problems)
    resolution.warnings[:0] = [warning for warning in parsed.warnings if warning not in resolution.warnings]
    return resolution
