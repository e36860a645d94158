"""The stage that resolves the draft which the core runs for a proposer: its checkpoint, its shape and its plugins.

Owns: that stage, and the reasons that make a draft impossible. Never does: read a weight, or know a method (the
proposer's plugin describes the draft). Called by: resolve, after the choice of plugins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.api.errors import ConfigError, PluginError, UserError
from core.api.specs import StateSpec
from core.args.plugin_arguments import convert_struct
from core.plugin.discovery import label
from core.plugin.hookspecs import DraftContext
from core.plugin.manifest import Manifest
from core_config.plugin_choices import speculative_arguments
from core_config.rules import Facts
from core_config.selection import select_quantization
from core_config.selection.ranking import Choice
from core_config.speculation.keys import DraftKeys, read_draft_keys
from core_config.speculation.model import Draft
from core_config.speculation.token_tree import token_tree
from core_config.speculation.vocabulary import check_vocabulary
from core_config.stages.attempt import Attempt
from core_config.stages.attention import choose_attention
from core_config.stages.checkpoint import Checkpoint, find_checkpoint
from core_config.stages.chosen import Chosen, ChosenPlatform
from core_config.stages.family import find_family
from core_config.stages.quantization_names import METHOD_NAMES
from core_config.stages.settings import Settings
from core_runtime.models.tensors.draft_names import draft_weight_map
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_spec import DraftSpec, draft_decoder
from core_runtime.specs.module_spec import ModelSpec

COUNT = "num_speculative_tokens"


@dataclass(frozen=True, slots=True)
class _Found:
    """A draft's checkpoint, located and resolved.

    checkpoint: checkpoint as the loader resolved it.
    canonical: its manifest under the names of its model; None for a model that the engine does not know.
    decoder: shape of that model.
    why: a sentence where there is none.
    """

    checkpoint: Checkpoint
    canonical: CheckpointManifest | None = None
    decoder: DecoderSpec | None = None
    family: Choice | None = None
    why: str = ""


def find_draft(attempt: Attempt, target: Checkpoint, spec: ModelSpec, platform: ChosenPlatform) -> Draft | None:
    """Return the draft; None where the core runs no draft for the proposer. Raises UserError or PluginError.

    target: checkpoint of the main model, as the loader resolved it. spec: shape of the main model.
    """
    plugin = _describer(attempt.chosen)
    if plugin is None:
        return None
    values = attempt.settings.mapping("speculative_config")
    keys, problems = read_draft_keys(values)
    if problems:
        raise ConfigError(problems)
    settings = _settings(attempt.settings, keys)
    found = _Found(target)
    if keys.model is not None:
        found = _find(attempt, settings, keys.model)
    shape = _described(attempt, plugin, found, spec, has_checkpoint=keys.model is not None)
    if shape is None:
        return None
    if shape.num_drafts and values.get(COUNT) is None:
        attempt.settings.derive(f"speculative_config.{COUNT}", shape.num_drafts, "as many as the draft has heads")
    where = f"--speculative-config: the draft '{keys.model or target.path}'"
    _check(shape, spec, where)
    if shape.decoder is not None and not shape.names:
        check_vocabulary(found.checkpoint.manifest.tokenizer, target.manifest.tokenizer, where)
    tree = _tree(shape, keys, values)
    in_target = keys.model is None
    decoder, manifest = _loaded(shape, found, spec, in_target=in_target)
    chosen = _chosen_with(attempt.chosen, found, shape)
    chosen.stages["quantization"] = select_quantization(
        attempt.plugins, keys.quantization, manifest.facts(), METHOD_NAMES
    )
    length = keys.max_model_len
    if decoder is not None:
        chosen.stages.update(choose_attention(settings, attempt.plugins, decoder.mixers, platform))
        length = length or decoder.max_position
    return Draft(shape, decoder, settings, chosen, manifest, found.checkpoint.path, in_target, length, tree)


def _tree(shape: DraftSpec, keys: DraftKeys, values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the requested tree of drafts; empty: a chain. Raises UserError for a method that does not draft trees."""
    tree = token_tree(keys.speculative_token_tree, values.get(COUNT))
    drafts_chains = shape.decoder is None or bool(shape.taps) or shape.parallel_token_id is not None
    if tree and drafts_chains:
        raise UserError("--speculative-config.speculative_token_tree: this method drafts chains only; leave it out.")
    return tree


def _chosen_with(target: Chosen, found: _Found, shape: DraftSpec) -> Chosen:
    """Return the draft's plugins, as far as the main model and the checkpoint determine them."""
    chosen = Chosen()
    for stage in ("platform", "kernels"):
        if stage in target.stages:
            chosen.stages[stage] = target.stages[stage]
    chosen.stages["loader"] = found.checkpoint.loader
    if found.family is not None and not shape.names:
        chosen.stages["model"] = found.family
    return chosen


def _loaded(
    shape: DraftSpec, found: _Found, target: ModelSpec, *, in_target: bool
) -> tuple[DecoderSpec | None, CheckpointManifest]:
    """Return the decoder that is loaded, or None, and the checkpoint under its names."""
    manifest = found.checkpoint.manifest
    if shape.decoder is None:
        return None, manifest
    decoder = draft_decoder(shape, target)
    if shape.names:
        return decoder, draft_weight_map(manifest, shape, decoder, in_target=in_target).manifest
    return decoder, found.canonical or manifest


def _describer(chosen: Chosen) -> Manifest | None:
    """Return the proposer's manifest, if it describes a draft."""
    stage = chosen.stages.get("speculative")
    if stage is None or not stage.manifests:
        return None
    plugin: Manifest = stage.manifest
    return plugin if plugin.implements("core_draft_spec") else None


def _settings(settings: Settings, keys: DraftKeys) -> Settings:
    """Return the main model's settings, except for those about the reading of a checkpoint, which are the draft's."""
    own: dict[str, Any] = {
        "model": keys.model,
        "revision": keys.revision,
        "quantization": keys.quantization,
        "quantization_config": {},
        "load_format": keys.load_format,
        "model_loader_extra_config": {},
        "mmproj": "none",
        "hf_overrides": keys.hf_overrides,
    }
    if keys.model is None:
        own = {}
    if keys.attention_backend is not None:
        own["attention_backend"] = keys.attention_backend
    if keys.enforce_eager is not None:
        own["enforce_eager"] = keys.enforce_eager
    return settings.beside(own, "speculative_config")


def _find(attempt: Attempt, settings: Settings, ref: str) -> _Found:
    """Return the checkpoint that `ref` names, with its model. Raises UserError or PluginError."""
    try:
        checkpoint = find_checkpoint(settings, attempt.plugins, Facts(settings, attempt.facts.context))
    except UserError as error:
        raise UserError(f"--speculative-config.model: {error}") from error
    try:
        canonical, spec, family = find_family(attempt.plugins, checkpoint, "core")
    except UserError as error:
        return _Found(checkpoint, why=str(error))
    if not isinstance(spec, DecoderSpec):
        return _Found(checkpoint, why="transformers' modules cannot draft.")
    if not spec.causal_lm:
        return _Found(checkpoint, why=f"an encoder ({spec.family}) generates no text.")
    return _Found(checkpoint, canonical.manifest, spec, family)


def _described(
    attempt: Attempt, plugin: Manifest, found: _Found, target: ModelSpec, *, has_checkpoint: bool
) -> DraftSpec | None:
    """Return the shape as the plugin describes it; None when its arguments are wrong, which is reported elsewhere."""
    given = speculative_arguments(attempt.settings, attempt.chosen)
    arguments, problems = convert_struct(plugin.spec.arguments, given, "")
    if problems:
        return None
    manifest = found.checkpoint.manifest
    context = DraftContext(
        target=target,
        hf_config=manifest.config,
        arguments=arguments,
        decoder=found.decoder,
        why_no_decoder=found.why,
        tensors=list(manifest.tensors),
        has_checkpoint=has_checkpoint,
    )
    shape = draft_shape(plugin, context)
    if shape is not None and shape.decoder is not None and not shape.names and found.decoder is None:
        raise PluginError(
            f"{label(plugin.row)}: core_draft_spec names no tensors, and the checkpoint is no known model's."
        )
    return shape


def draft_shape(plugin: Manifest, context: DraftContext) -> DraftSpec | None:
    """Return the answer of a plugin's `core_draft_spec`. Raises PluginError for an answer of another type."""
    answer = plugin.call("core_draft_spec", context=context)
    if answer is None or isinstance(answer, DraftSpec):
        return answer
    raise plugin.unexpected("core_draft_spec", answer)


def _check(shape: DraftSpec, target: ModelSpec, where: str) -> None:
    """Raise UserError for a draft that the core cannot run with this model. where: the beginning of the sentence."""
    if shape.taps and not isinstance(target, DecoderSpec):
        raise UserError(f"{where} reads hidden states, which transformers' modules do not give; choose another method.")
    decoder = shape.decoder
    if decoder is None:
        return
    states = sorted({mixer.op for mixer in decoder.mixers if isinstance(mixer, StateSpec)})
    if states:
        raise UserError(
            f"{where} has layers with a state ({', '.join(states)}), which would keep rejected tokens; "
            "choose a draft with attention alone."
        )
    if shape.draft_vocab_size is None and decoder.vocab_size < target.vocab_size:
        raise UserError(
            f"{where} has a vocabulary of {decoder.vocab_size} tokens, the main model of {target.vocab_size}; "
            "expected the same one. Choose a draft of the main model's own kind."
        )
