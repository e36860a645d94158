"""The choice of a server's HTTP APIs: all that are installed, except those that `--plugins` excludes.

Owns: that choice, and the order in which their paths are matched. Never does: build one (the server does).
Called by: resolve.
"""

from __future__ import annotations

from core.api.config import ResolvedPlugin
from core.plugin.discovery import duplicates, origin
from core.plugin.registry import PluginRegistry

KIND = "api"


def chosen_apis(registry: PluginRegistry, problems: list[str], warnings: list[str]) -> tuple[ResolvedPlugin, ...]:
    """Return the rows of the APIs. Sentences about problems are added to `problems`, those about an API that the user
    did not name to `warnings`.
    """
    if not registry.rows(KIND):
        problems.append("No HTTP API is installed: `pip install core-engine-apis` brings those of the engine.")
    installed = [row for row in registry.rows(KIND) if not registry.blocked(row)]
    registry.rehearse([row for row in installed if not registry.own(row)], ())
    found: list[tuple[int, ResolvedPlugin]] = []
    for row, manifest in registry.candidates(KIND, installed):
        if not isinstance(manifest, str):
            found.append((manifest.spec.priority, row))
        elif registry.own(row):
            problems.append(manifest)
        else:
            warnings.append(f"{manifest.rstrip('.')}; the server starts without it (--plugins no:{row.name} says so).")
    for _, name in sorted(duplicates(row for _, row in found)):
        origins = " and ".join(origin(row) for _, row in found if row.name == name)
        problems.append(f"api '{name}': offered by {origins}; leave one out, as with --plugins no:DISTRIBUTION:{name}.")
    found.sort(key=lambda entry: -entry[0])
    return tuple(row for _, row in found)
