"""A resolved draft of a proposer, before it becomes a part of the engine's configuration.

Owns: `Draft`. Never does: search (`core_config.speculation.draft` does). Called by: the later stages, which plan its memory and
write its configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from core.api.model_config import ModelConfig
from core.api.specs import MixerSpec
from core.api.step_limits import StepLimits
from core.plugin.registry import PluginRegistry
from core_config.plugin_choices import plugin_choices
from core_config.stages.chosen import Chosen
from core_config.stages.settings import Settings
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_config import DraftConfig
from core_runtime.specs.draft_spec import DraftSpec


@dataclass(frozen=True, slots=True)
class Draft:
    """A resolved draft.

    spec: its shape.
    decoder: the part of it that the core runs, as it is loaded; None where the plugin's own heads compute.
    settings: the main model's settings, with the draft's own values.
    chosen: the plugins that read and compute it.
    manifest: manifest of its checkpoint, under canonical names.
    path: path of its checkpoint.
    in_target: whether that is the main model's checkpoint.
    max_model_len: tokens of the longest sequence that it drafts for; None: as many as the main model's.
    tree: the shape of its drafts; empty: a chain.
    """

    spec: DraftSpec
    decoder: DecoderSpec | None
    settings: Settings
    chosen: Chosen
    manifest: CheckpointManifest
    path: str
    in_target: bool
    max_model_len: int | None
    tree: tuple[int, ...] = ()

    @property
    def mixers(self) -> tuple[MixerSpec, ...]:
        """Return the mixers of its layers, each of which has a place in the KV cache."""
        return () if self.decoder is None else self.decoder.mixers

    def config(
        self, registry: PluginRegistry, target: ModelConfig, limits: StepLimits, problems: list[str]
    ) -> DraftConfig:
        """Return the config for the worker. target: config of the main model. Sentences about plugins' arguments are
        added to `problems`.
        """
        found: list[str] = []
        plugins = plugin_choices(self.settings, registry, self.chosen, found)
        problems += [problem for problem in found if problem not in problems]
        length = min(target.max_model_len, self.max_model_len or target.max_model_len)
        vocab_size = target.vocab_size if self.decoder is None else self.decoder.vocab_size
        model = msgspec.structs.replace(
            target,
            model=self.path,
            max_model_len=length,
            vocab_size=vocab_size,
            hf_config=self.manifest.config,
            enforce_eager=self.settings["enforce_eager"],
            implementation="core",
        )
        return DraftConfig(
            spec=self.spec, model=model, plugins=plugins, limits=limits, in_target=self.in_target, tree=self.tree
        )
