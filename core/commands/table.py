"""The commands of the project: the order in which help lists them, and the distribution of each.

Owns: this table. Never does: say whether a command is installed. Called by: `core.commands.finding`.
"""

from __future__ import annotations

from typing import Final

CORE: Final = "core-engine"
COMMANDS: Final = "core-commands"

KNOWN: Final[dict[str, str]] = {
    "serve": COMMANDS,
    "chat": COMMANDS,
    "complete": COMMANDS,
    "run-batch": COMMANDS,
    "bench": COMMANDS,
    "collect-env": COMMANDS,
    "models": COMMANDS,
    "plugins.list": CORE,
    "plugins.show": COMMANDS,
    "plugins.explain": COMMANDS,
    "plugins.check": COMMANDS,
    "plugins.new": COMMANDS,
    "config.explain": COMMANDS,
    "config.show": COMMANDS,
    "config.schema": CORE,
    "convert": COMMANDS,
    "save-sharded": COMMANDS,
    "build-kernels": COMMANDS,
    "kernels": COMMANDS,
    "dashboard": COMMANDS,
    "completion": COMMANDS,
}
"""Distribution by command; a dot separates the words of a command of two words."""

GROUPS: Final[dict[str, str]] = {
    "plugins": "Look at plugins, check them, write one.",
    "config": "Look at the configuration.",
}
"""First words of commands of two words, with the first sentence of their help."""
