"""The plugins that were chosen, by stage.

Owns: `Chosen` and questions about it, and `ChosenPlatform`. Never does: choose. Called by: the stages, waivers, weights.
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
    """Choices by stage, in order."""

    stages: dict[str, Choice] = field(default_factory=dict)

    def name(self, stage: str) -> str | None:
        """The one name chosen in `stage`, or None."""
        choice = self.stages.get(stage)
        return choice.selection.chosen[0] if choice is not None and choice.selection.chosen else None

    def with_capability(self, stage: str, name: str) -> list[str]:
        """Names of the plugins chosen in `stage`, or in a part of it, that declare the capability `name`."""
        found = {
            manifest.row.name
            for key, choice in self.stages.items()
            for manifest in choice.manifests
            if key.partition(".")[0] == stage and manifest.spec.capabilities.get(name)
        }
        return sorted(found)

    def replaceable(self) -> set[ResolvedPlugin]:
        """Rows that nobody named and whose work others can do."""
        found: set[ResolvedPlugin] = set()
        named: set[ResolvedPlugin] = set()
        for choice in self.stages.values():
            if choice.manifests:
                named.update(choice.named)
            found.update(manifest.row for manifest in choice.manifests)
        return {row for row in found - named if kind_named(row.kind).replaceable}

    def manifests(self) -> list[Manifest]:
        """Every chosen manifest once."""
        found: dict[tuple[str, str], Manifest] = {}
        for choice in self.stages.values():
            for manifest in choice.manifests:
                found[manifest.row.kind, manifest.row.name] = manifest
        return list(found.values())

    def selections(self) -> list[Selection]:
        """For people."""
        return [choice.selection for choice in self.stages.values()]


@dataclass(frozen=True, slots=True)
class ChosenPlatform:
    """The platform, and what it wants.

    manifest: of the platform.
    device: on which it runs.
    wishes: plugins that it prefers, by argument.
    """

    manifest: Manifest
    device: Device
    wishes: Mapping[str, Sequence[str]]
