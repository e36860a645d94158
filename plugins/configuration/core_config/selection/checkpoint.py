"""The choice of the plugins that read a checkpoint: its loader, and the family of its model.

Owns: those two stages, and the handling of claims. Never does: read a file. Called by: the configuration's stages of the same
names.
"""

from __future__ import annotations

from core.api.checkpoint_facts import CheckpointFacts, FileFacts
from core.api.errors import UserError
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core.plugin.rehearsal import Call
from core_config.selection.ranking import Choice, explicit, losses, ranked


def select_loader(registry: PluginRegistry, name: str | None, facts: FileFacts) -> Choice:
    """Choose the named loader, else the one that claims the files. Raises UserError or PluginError."""
    if name is not None:
        return explicit(registry, "loader", "loader", name, lambda manifest: [], f"--load-format {name}")
    claims: dict[str, str] = {}
    choice = ranked(
        registry,
        "loader",
        "loader",
        lambda manifest: unclaimed(manifest, facts, claims),
        lambda found: claims[found],
        calls=[Call.of("core_claim", facts=facts)],
    )
    if not choice.manifests:
        seen = ", ".join(facts.names[:8]) or "nothing"
        raise UserError(
            f"model '{facts.ref}': no loader knows these files ({seen}). {losses(choice.selection)}"
            "Expected a .gguf file, or a directory with config.json and weights; --load-format NAME chooses a loader."
        )
    return choice


def select_model(registry: PluginRegistry, facts: CheckpointFacts) -> Choice:
    """Choose the family that claims a checkpoint which the engine's own table does not know, or none."""
    claims: dict[str, str] = {}
    return ranked(
        registry,
        "model",
        "model",
        lambda manifest: unclaimed(manifest, facts, claims),
        lambda found: claims[found],
        calls=[Call.of("core_claim", facts=facts)],
    )


def unclaimed(manifest: Manifest, facts: CheckpointFacts | FileFacts, claims: dict[str, str]) -> list[str]:
    """Return why a plugin does not claim a checkpoint; store its claim in `claims`, by its name, when it does."""
    claim = manifest.call("core_claim", facts=facts)
    if claim is None:
        return ["does not claim the checkpoint"]
    claims[manifest.row.name] = claim
    return []
