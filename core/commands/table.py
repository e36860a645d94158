"""The commands of the project: the order in which help lists them, and the distribution of each.

Owns: this table. Never does: say whether a command is installed. Called by: `core.commands.finding`.
"""

from typing import Final

CORE: Final = "core-engine"
COMMANDS: Final = "core-engine-commands"

_ALL: Final = """
    serve chat complete run-batch bench tune collect-env models plugins.list plugins.show plugins.explain plugins.check
    plugins.new plugins.doctor config.explain config.show config.schema kv.audit kv.check kv.list kv.verify kv.clear convert
    save-sharded build-kernels kernels dashboard completion nodes.answer nodes.check scale
"""
KNOWN: Final = {name: CORE if name == "plugins.list" else COMMANDS for name in _ALL.split()}
"""Distribution by command; a dot separates the words of a command of two words."""

GROUPS: Final[dict[str, str]] = {
    "plugins": "Look at plugins, check them, write one.",
    "config": "Look at the configuration.",
    "nodes": "Check the network between machines.",
    "kv": "Look at cached prefixes: what a log computes again, pages on disk.",
}
"""First words of commands of two words, with the first sentence of their help."""
