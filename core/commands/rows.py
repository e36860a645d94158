"""The command of the minimal core.

Owns: its row. Never does: import the function that it runs. Called by: discovery, through entry points.
"""

from __future__ import annotations

from typing import Final

from core.commands.declared import DeclaredCommand

PLUGINS_LIST: Final = DeclaredCommand(
    "plugins.list",
    "core.commands.plugins_list:plugins_list",
    ("", "Every plugin that is installed, and whether it can be used."),
)
