"""The command `core config schema`, which prints the JSON Schema of all arguments.

Owns: the output of this command. Never does: resolve a configuration. Called by: the frame.
"""

from __future__ import annotations

from core.args.show import show
from core.commands.tables import print_json
from core.commands.words import refuse_words, take_help
from core.plugin.registry import PluginRegistry
from core_commands.cli.argument_schema import json_schema


def config_schema(words: list[str]) -> int:
    """Run the command with the words after its name; return the exit code."""
    if take_help(words) is not None:
        show("core config schema", "JSON Schema (2020-12) of all arguments, those of available plugins included.", [])
        return 0
    refuse_words("core config schema", words)
    print_json(json_schema(PluginRegistry()))
    return 0
