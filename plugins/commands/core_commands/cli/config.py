"""`core config explain | show`.

Owns: the output of both commands. Never does: resolve or load a model. Called by: the frame.
"""

from __future__ import annotations

import sys

from core.commands.tables import print_json
from core.commands.words import take_help, take_switch
from core_commands.cli.options import parse_engine_arguments, show_engine_help
from core_config.resolve import Resolution, resolve

EXPLAIN = "core config explain [MODEL] [ARGUMENTS] [--json]"
SHOW = "core config show [MODEL] [ARGUMENTS] [--secrets]"


def config_explain(words: list[str]) -> int:
    """Run `core config explain`; returns the exit code."""
    return explain(words, EXPLAIN, "Every value with its origin and reason, plugins, and the memory plan.")


def explain(words: list[str], usage: str, summary: str) -> int:
    """Print the configuration with its reasons, or the help of the command; returns the exit code."""
    wanted = take_help(words)
    if wanted is not None:
        show_engine_help(usage, summary, wanted)
        return 0
    from core_commands.cli.explain import explanation, print_explanation

    as_json = take_switch(words, "--json")
    resolution = _resolved(words)
    if as_json:
        print_json(explanation(resolution))
    else:
        print_explanation(resolution)
    return 0


def config_show(words: list[str]) -> int:
    """Run `core config show`; returns the exit code."""
    wanted = take_help(words)
    if wanted is not None:
        show_engine_help(SHOW, "The configuration as YAML, for --config.", wanted)
        return 0
    from core_config.document import as_yaml

    secrets = take_switch(words, "--secrets")
    resolution = _resolved(words)
    for warning in resolution.warnings:
        print(f"core: warning: {warning}", file=sys.stderr)
    print(as_yaml(resolution, secrets=secrets), end="")
    return 0


def _resolved(words: list[str]) -> Resolution:
    """Return the configuration with which `core serve` would run for these words."""
    parsed = parse_engine_arguments(words)
    resolution = resolve(parsed.values, context="explain", problems=parsed.problems)
    resolution.warnings[:0] = [warning for warning in parsed.warnings if warning not in resolution.warnings]
    return resolution
