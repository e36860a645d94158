"""The choice of a server's resolvers, which find adapters by names that it does not know.

Owns: that choice, and the server's settings about adapters. Never does: build a resolver (the server does). Called by: resolve.
"""

from __future__ import annotations

from pathlib import Path

from core.api.config import ResolvedPlugin
from core.api.errors import nearest
from core.plugin.distributions import missing
from core.plugin.kinds import normalize
from core.plugin.registry import PluginRegistry
from core_config.served.server_config import AdapterSettings
from core_config.stages.settings import Settings

KIND = "resolver"


def adapter_settings(settings: Settings, registry: PluginRegistry, problems: list[str]) -> AdapterSettings | None:
    """Return the settings; None without adapters. Sentences about problems are added to `problems`."""
    if not settings["enable_lora"]:
        return None
    directory = settings["lora_directory"]
    names = settings["lora_resolvers"]
    if names is None:
        names = [] if directory is None else ["directory"]
    elif "directory" in names and directory is None:
        problems.append("--lora-resolvers directory: say which one; give --lora-directory.")
    found = [_row(registry, name, problems) for name in names]
    return AdapterSettings(
        directory=None if directory is None else str(Path(directory).expanduser().absolute()),
        resolvers=tuple(row for row in found if row is not None),
        timeout_s=settings["lora_resolver_timeout"],
        is_updated=settings["allow_runtime_lora_updating"],
    )


def _row(registry: PluginRegistry, name: str, problems: list[str]) -> ResolvedPlugin | None:
    """Return the plugin of one name, whose manifest can be used."""
    rows = [row for row in registry.rows(KIND) if row.name == normalize(name) and not registry.blocked(row)]
    if not rows:
        known = [row.name for row in registry.rows(KIND)]
        why = missing(KIND, name) or f"no such resolver; known: {', '.join(known)}.{nearest(name, known)}"
        problems.append(f"--lora-resolvers {name}: {why}")
        return None
    [(row, manifest), *_] = registry.candidates(KIND, rows)
    if isinstance(manifest, str):
        problems.append(manifest)
        return None
    return row
