"""What a checkpoint's model can do besides generating text: vectors, classes, adapters, drafts, media, quantization.

Owns: one sentence for each of these. Never does: read a weight, import torch, start anything. Called by: the report on a
checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from core.api.errors import UserError
from core.plugin.hookspecs import DraftContext
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core_config.media import modalities_of, why_not
from core_config.speculation.draft import draft_shape
from core_config.stages.settings import Settings
from core_runtime.models.families.class_heads import ending_of
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec

OTHERS: Final = "with a checkpoint of their own"
"""Drafts that are a model, or a head, of another checkpoint."""


@dataclass(frozen=True, slots=True)
class Uses:
    """One model, and what may use it.

    path: its directory or file. manifest: the checkpoint under its own names. quantization: the method that reads it, or None.
    """

    settings: Settings
    plugins: PluginRegistry
    path: str
    manifest: CheckpointManifest
    spec: DecoderSpec
    quantization: str | None

    def all(self) -> dict[str, str]:
        """Return a sentence for each use."""
        return {
            "text": "one token after another" if self.spec.causal_lm else "none: it is an encoder",
            "vectors": "one of a text, and one of each token (--runner pooling)",
            "classes": self._classes(),
            "adapters": self._adapters(),
            "drafts": self._drafts(),
            "media": self._media(),
            "quantization": self._quantization(),
        }

    def _classes(self) -> str:
        head = self.spec.pooling_head
        if head is None:
            return "none: the checkpoint has no head for classes"
        whose = "of each token" if head.kind == "all" else "of a text"
        return f"{head.num_labels} {whose}, by the head of {ending_of(self.manifest.config)}"

    def _adapters(self) -> str:
        blocks = range(len(self.spec.blocks))
        count = sum(len(parts) for index in blocks for parts in self.spec.fused_linears(index))
        return f"LoRA on {count} matrices of blocks (--enable-lora)"

    def _drafts(self) -> str:
        """Return the methods of `--speculative-config`: those that need nothing, and those with a part of the checkpoint."""
        if not self.spec.causal_lm:
            return "none: it generates no text"
        tensors = list(self.manifest.tensors)
        context = DraftContext(self.spec, self.manifest.config, tensors=tensors, has_checkpoint=False)
        found: dict[str, list[str]] = {"with layers of the checkpoint": [], "from the text": [], OTHERS: []}
        for row, manifest in self.plugins.candidates("speculative"):
            if not isinstance(manifest, str):
                found[_way(manifest, context)].append(row.name)
        return "; ".join(f"{way} {_listed(names)}" for way, names in found.items() if names)

    def _media(self) -> str:
        refusal = why_not(self.settings, self.path, self.manifest)
        return (
            f"none: {refusal}" if refusal else f"{_listed(modalities_of(self.manifest.config)) or 'audio'} in prompts"
        )

    def _quantization(self) -> str:
        if self.quantization is not None:
            return f"as it is stored ({self.quantization})"
        facts = self.manifest.facts()
        able = []
        for row, manifest in self.plugins.candidates("quantization"):
            if not isinstance(manifest, str) and not manifest.call("core_supports", query=facts):
                able.append(row.name)
        return f"as it is loaded: {_listed(able)} (--quantization)"


def _way(manifest: Manifest, context: DraftContext) -> str:
    """Return where a method's drafts come from: the text, the checkpoint itself, or another one."""
    if not manifest.implements("core_draft_spec"):
        return "from the text"
    try:
        shape = draft_shape(manifest, context)
    except UserError:  # the method says what it misses in this checkpoint
        return OTHERS
    return OTHERS if shape is None else "with layers of the checkpoint"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))
