"""The quarantine: plugins that `core plugins doctor` has named are left out of a start.

Owns: which of them can be left out, and the sentence about each. Never does: judge a plugin. Called by: resolve, once
the plugins are discovered.
"""

from __future__ import annotations

from pathlib import Path

from core.api.config import ResolvedPlugin
from core.plugin.discovery import origin
from core.plugin.kinds import kind_named
from core_config.leaving_out import without
from core_config.stages.attempt import Attempt


def apply_quarantine(attempt: Attempt) -> None:
    """Leave out the installed plugins that are in quarantine, with a warning for each.

    Raises UserError for a damaged list.
    """
    settings = attempt.settings
    directory = settings["state_canary"]
    if not settings["quarantine_plugins"] or directory is None:
        return
    from core_observers.runs.quarantine import held, read_culprits  # a resolution without a quarantine needs none of it

    registry = attempt.plugins
    for row, why in held(read_culprits(Path(directory)), registry.rows()):
        if registry.blocked(row):
            continue
        sentence = _refusal(row, settings["device"])
        if sentence:
            attempt.warnings.append(f"--quarantine-plugins: {_named(row)} {why}. {sentence}")
            continue
        registry.block(row, f"in quarantine: it {why}")
        for name, value in without(row, settings.values()).items():
            settings.replace(name, value, f"{row.kind}.{row.name} is in quarantine")
        attempt.warnings.append(
            f"--quarantine-plugins: {_named(row)} is left out: it {why}. Another version is used again; "
            "`core plugins doctor` says more."
        )


def _refusal(row: ResolvedPlugin, device: str) -> str:
    """Return why a plugin cannot be left out, and what helps; empty when it can."""
    if not kind_named(row.kind).replaceable:
        return f"Nothing else does the work of this {row.kind} plugin, so it stays; install another version."
    if row.kind == "platform" and device.partition(":")[0].replace("-", "_").lower() == row.name:
        return f"--device {device} names it, so it stays; name another device, or install another version."
    return ""


def _named(row: ResolvedPlugin) -> str:
    return f"{row.kind}.{row.name} ({origin(row)})"
