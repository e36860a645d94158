"""The plugins that were chosen, by stage.

Owns: `Chosen` with its queries, and `ChosenPlatform`. Never does: choose. Called by: the stages, waivers, weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.api.config import ResolvedPlugin
from core.plugin.hookspecs import Device
from core.plugin.kinds import kind_named
from core.plugin.manifest import Manifest
from core_config.selection.ranking import Choice, Selection


@dataclass(slots=True)
class Chosen:
    """The choices made so far, by stage, in order."""

    stages: dict[str, Choice] = field(default_factory=dict)

    def name(self, stage: str) -> str | None:
        """Return the one name chosen in `stage`, or None."""
        choice = self.stages.get(stage)
        return choice.selection.chosen[0] if choice is not None and choice.selection.chosen else None

    def with_capability(self, stage: str, name: str) -> list[str]:
        """Return the names of the plugins chosen in `stage`, or in a part of it, that declare the capability `name`."""
        found = {
            manifest.row.name
            for key, choice in self.stages.items()
            for manifest in choice.manifests
            if key.partition(".")[0] == stage and manifest.spec.capabilities.get(name)
        }
        return sorted(found)

    def replaceable(self) -> set[ResolvedPlugin]:
        """Return the rows that the user did not name and that other plugins can replace."""
        found: set[ResolvedPlugin] = set()
        named: set[ResolvedPlugin] = set()
        for choice in self.stages.values():
            if choice.manifests:
                named.update(choice.named)
            found.update(manifest.row for manifest in choice.manifests)
        return {row for row in found - named if kind_named(row.kind).replaceable}

    def manifests(self) -> list[Manifest]:
        """Return every chosen manifest once."""
        found: dict[tuple[str, str], Manifest] = {}
        for choice in self.stages.values():
            for manifest in choice.manifests:
                found[manifest.row.kind, manifest.row.name] = manifest
        return list(found.values())

    def selections(self) -> list[Selection]:
        """Return the selections with their reasons, for explanations."""
        return [choice.selection for choice in self.stages.values()]


@dataclass(frozen=True, slots=True)
class ChosenPlatform:
    """The chosen platform and its preferences.

    manifest: manifest of the platform.
    device: device on which it runs.
    wishes: plugins that it prefers, by argument.
    """

    manifest: Manifest
    device: Device
    wishes: Mapping[str, Sequence[str]]
