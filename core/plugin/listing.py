"""The list of all plugins with their status, as people see it.

Owns: the status and the reason of a row. Never does: choose.
Called by: `core plugins list` and `show`, the arguments' JSON schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from core.api.config import ResolvedPlugin
from core.api.errors import CoreError, PluginError
from core.plugin.discovery import origin
from core.plugin.editable import stale
from core.plugin.hookspecs import Probe
from core.plugin.kernel_support import KERNEL_CALLS, kernel_reasons
from core.plugin.manifest import Manifest, ManifestError
from core.plugin.registry import PluginRegistry
from core.plugin.requirements import unmet

Status = Literal["available", "unavailable", "broken", "blocked"]
Answers = Mapping[ResolvedPlugin, Probe | PluginError]


@dataclass(frozen=True, slots=True)
class Listed:
    """A plugin's row with its status.

    reason: why the plugin cannot be used, or a warning about it; empty when all is well.
    contract, manifest: None when the manifest cannot be used, or was not read.
    details: a traceback, or an empty string.
    """

    row: ResolvedPlugin
    status: Status
    reason: str = ""
    contract: int | None = None
    manifest: Manifest | None = None
    details: str = ""


def listing(registry: PluginRegistry) -> list[Listed]:
    """Return every row with its status. Imports all manifests and probes all platforms; the slowest sets the duration."""
    registry.start_probes()
    providers: list[ResolvedPlugin] = []
    others: list[ResolvedPlugin] = []
    for row in registry.rows():
        if row.kind == "platform" or registry.own(row):
            continue
        if row.kind == "kernels":
            providers.append(row)
        else:
            others.append(row)
    registry.rehearse(others, ())
    registry.rehearse(providers, KERNEL_CALLS)
    answers = registry.probe()
    return [_listed(registry, row, answers) for row in registry.rows()]


def _listed(registry: PluginRegistry, row: ResolvedPlugin, answers: Answers) -> Listed:
    if registry.blocked(row):
        return Listed(row, "blocked", registry.blocked(row))
    probed = answers.get(row)
    if isinstance(probed, Probe) and probed.unavailable and not registry.own(row):
        return Listed(row, "unavailable", probed.unavailable)  # Not imported here, as the user did not choose it.
    try:
        manifest = registry.manifest(row)
    except ManifestError as error:
        return Listed(row, "broken", str(error), details=error.details)
    status, reason = _health(row, manifest, answers)
    if not reason:
        reason = _others(registry, row) or unmet(row.distribution) or manifest.warning or stale(row.distribution)
    return Listed(row, status, reason, manifest.contract, manifest)


def _others(registry: PluginRegistry, row: ResolvedPlugin) -> str:
    """Return a sentence when other distributions offer the same kind and name, else an empty string."""
    of_kind = registry.rows(row.kind)
    others = [other for other in of_kind if other.name == row.name and other != row]
    if not others:
        return ""
    origins = ", ".join(origin(other) for other in others)
    return f"also offered by {origins}; write {row.distribution}:{row.name}"


def _health(row: ResolvedPlugin, manifest: Manifest, answers: Answers) -> tuple[Status, str]:
    """Return whether a valid manifest's plugin can be used on this machine, with the reason when it cannot."""
    if row.kind == "platform":
        return _platform_health(answers[row])
    if row.kind == "kernels":
        return _kernels_health(manifest)
    return "available", ""


def _platform_health(answer: Probe | PluginError) -> tuple[Status, str]:
    if isinstance(answer, PluginError):
        return "broken", str(answer)
    if answer.unavailable:
        return "unavailable", answer.unavailable
    return "available", ""


def _kernels_health(manifest: Manifest) -> tuple[Status, str]:
    devices = manifest.spec.capabilities.get("devices") or ["cpu"]
    try:
        reasons = kernel_reasons(manifest, devices[0])
    except CoreError as error:
        return "broken", str(error)
    if reasons:
        return "unavailable", "; ".join(str(reason) for reason in reasons)
    return "available", ""
