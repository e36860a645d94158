"""The command."""

from __future__ import annotations

from collections import Counter

from core.api.errors import UserError
from core.plugin.discovery import discover


class CountPlugins:
    """Implements `core.api.command.Command`."""

    usages = (("[--kind=KIND]", "Count the plugins of each kind."),)

    def run(self, words: list[str]) -> int:
        """Print a line for each kind, or for one; returns the exit code."""
        if "--help" in words:
            print("Usage: core my-plugin [--kind=KIND]\n\nCount the plugins of each kind.")
            return 0
        wanted = ""
        for word in words:
            if not word.startswith("--kind="):
                raise UserError(f"core my-plugin {word}: unexpected; expected --kind=KIND or nothing.")
            wanted = word.removeprefix("--kind=")
        for kind, count in Counter(row.kind for row in discover()).items():
            if wanted in ("", kind):
                print(f"{kind}: {count}")
        return 0
