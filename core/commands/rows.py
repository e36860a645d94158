"""The two commands of the minimal core.

Owns: these rows. Never does: import the functions that they run. Called by: discovery, through entry points.
"""

from __future__ import annotations

from typing import Final

from core.commands.declared import DeclaredCommand

PLUGINS_LIST: Final = DeclaredCommand(
    "plugins.list",
    "core.commands.plugins_list:plugins_list",
    ("", "Every plugin that is installed, and whether it can be used."),
)
CONFIG_SCHEMA: Final = DeclaredCommand(
    "config.schema", "core.commands.config_schema:config_schema", ("", "JSON Schema of all arguments.")
)
