"""Gemma 3n: four residual streams, embeddings for each layer, sparse MLPs, and keys and values of earlier layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core.api.specs import AttentionSpec
from core_models.gemma4 import lenders, shared_blocks, sharing
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import Ignored, WeightRule
from core_runtime.specs.block_spec import BlockSpec
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.layer_inputs import LayerInputs
from core_runtime.specs.streams import Streams

MOST_STREAMS: Final = 16
SPARSE: Final = 0.95
FIRST_SPARSE: Final = 10
"""Without a pattern, that share of the gate is zero in so many first layers of a model with more."""


def usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration with one inner size, which `whole` replaces layer by layer. Raises UserError for streams
    and shared layers that are not served.
    """
    config = configuration(hf_config)
    if config.count("altup_active_idx", 0):
        config.fail("altup_active_idx", config.get("altup_active_idx"), "0")
    streams = config.positive("altup_num_inputs", 4)
    if not 2 <= streams <= MOST_STREAMS:
        config.fail("altup_num_inputs", streams, f"a number from 2 to {MOST_STREAMS}")
    layers = config.positive("num_hidden_layers")
    shared = config.count("num_kv_shared_layers", 0)
    if shared >= layers:
        config.fail("num_kv_shared_layers", shared, "fewer than there are layers")
    sizes = _sizes(config, layers)
    return config.overlaid({"intermediate_size": sizes[0], "inner_sizes": sizes})


def _sizes(config: Configuration, layers: int) -> list[int]:
    """Return the inner size of each layer: a list, or the same number for all."""
    if not isinstance(config.get("intermediate_size"), list):
        return [config.positive("intermediate_size")] * layers
    sizes = config.list_of("intermediate_size", int, layers)
    if min(sizes) < 1:
        config.fail("intermediate_size", sizes, "a positive integer for each layer")
    return sizes


def _sparsity(config: Configuration, layers: int) -> list[float]:
    """Return the share of the gate that is zero, of each layer."""
    if config.get("activation_sparsity_pattern") is None:
        first = FIRST_SPARSE if layers > FIRST_SPARSE else 0
        return [SPARSE] * first + [0.0] * (layers - first)
    found = config.list_of("activation_sparsity_pattern", float, layers)
    if not all(0 <= one < 1 for one in found):
        config.fail("activation_sparsity_pattern", found, "a number from 0 to below 1 for each layer")
    return found


def unscaled(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Set the scale of scores, 1: queries and keys are normalized."""
    assert isinstance(block.mixer, AttentionSpec), "every layer attends"
    return msgspec.structs.replace(block, mixer=msgspec.structs.replace(block.mixer, scale=1.0))


def whole(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set streams, embeddings for each layer, the norm of values, and what differs by layer."""
    config = configuration(hf_config)
    layers = len(spec.blocks)
    heads = msgspec.structs.replace(spec.heads, value_norm=msgspec.structs.replace(spec.norm, weighted=False))
    blocks = shared_blocks(spec, heads, config.count("num_kv_shared_layers", 0))
    sizes = config.list_of("inner_sizes", int)
    for index, sparsity in enumerate(_sparsity(config, layers)):
        mlp = msgspec.structs.replace(spec.mlp, size=sizes[index], sparsity=sparsity)
        blocks[index] = msgspec.structs.replace(blocks[index], mlp=mlp)
    tokens = config.positive("vocab_size_per_layer_input", spec.vocab_size)
    return msgspec.structs.replace(
        spec,
        heads=heads,
        blocks=tuple(blocks),
        layer_inputs=LayerInputs(config.positive("hidden_size_per_layer_input"), tokens, layers),
        streams=Streams(
            config.positive("altup_num_inputs", 4),
            config.positive("laurel_rank"),
            config.flag("altup_correct_scale", True),
        ),
    )


def weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for layers that have the keys and values of an earlier one, and for factors that do not count."""
    config = configuration(hf_config)
    rules = sharing(lenders(spec, config.count("num_kv_shared_layers", 0)))
    if not config.flag("altup_correct_scale", True):
        rules.append(Ignored(r".*\.altup\.correct_output_scale", "altup_correct_scale says that it does not count"))
    return tuple(rules)


ROWS = (
    Family(
        name="gemma3n",
        model_types=("gemma3n_text",),
        architectures=("Gemma3nForCausalLM",),
        wrappers=("gemma3n",),
        neutral={"altup_coef_clip": "coefficients are clipped in training alone"},
        usual=usual,
        tied_by_default=True,
        sandwich_norms=True,
        qk_norm=True,
        scale_embedding=True,
        full_every=5,
        block=unscaled,
        adjust=whole,
        weights=weights,
    ),
)
