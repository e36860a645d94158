"""Zamba 2: layers with a state, some of which also read what a shared block of attention and MLP makes of the stream.

A layer with such a block is two blocks here. The shared blocks are few and used in turn, each time with small matrices of that
use's own (arXiv 2411.15242); every use has its own copy of the shared matrices in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import Family
from core_runtime.models.state_layers import mamba2
from core_runtime.models.weight_rules import Copied, Ignored, Rename, WeightRule, modules
from core_runtime.specs.block_spec import BlockSpec
from core_runtime.specs.decoder_spec import DecoderSpec

STATE: Final = ("mamba", "linear_attention")
USUAL: Final = [
    "mamba",
    *([*["mamba"] * 5, "hybrid"] * 7),
    *(*["mamba"] * 4, "hybrid"),
    *(*["mamba"] * 3, "hybrid"),
    *["mamba"] * 2,
]
"""Kinds of the 54 layers of a configuration that names none."""
LONG: Final = 16384
"""Positions with `use_long_context`, whatever the configuration says besides."""
SHARED: Final = modules(
    ("pre_ff_layernorm", "post_attention_layernorm"),
    ("feed_forward", "mlp"),
)


def _kinds(config: Configuration) -> list[str]:
    """Return the kind of each layer. Raises UserError for one that is not served, or a wrong number."""
    count = config.positive("num_hidden_layers")
    kinds = config.list_of("layer_types", str) or USUAL
    if len(kinds) != count or not set(kinds) <= {*STATE, "hybrid"}:
        config.fail("layers_block_type", kinds, f"mamba or hybrid for each of {count} layers")
    return kinds


def usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration of the blocks: a layer with a shared block is that block and one with a state."""
    config = configuration(hf_config)
    blocks: list[str] = []
    for kind in _kinds(config):
        blocks += ["shared", "state"] if kind == "hybrid" else ["state"]
    hidden = config.positive("hidden_size")
    heads = config.positive("num_attention_heads")
    size = 2 * hidden // heads
    values: dict[str, Any] = {
        "num_hidden_layers": len(blocks),
        "block_kinds": blocks,
        "layer_types": None,
        "head_dim": size,
        "query_pre_attn_scalar": size / 2,
        "num_key_value_heads": config.positive("num_key_value_heads", heads),
        "intermediate_size": config.positive("intermediate_size", 4 * hidden),
    }
    if config.flag("use_long_context"):
        values["max_position_embeddings"] = LONG
    return config.overlaid(values)


def aside(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Set what a shared block reads and where its result goes; a block with a state is that alone."""
    config = configuration(hf_config)
    kinds = config.list_of("block_kinds", str)
    if kinds[index] == "state":
        return msgspec.structs.replace(block, has_mlp=False, takes_aside=index > 0 and kinds[index - 1] == "shared")
    rope = block.rope if config.flag("use_mem_rope") else None
    return msgspec.structs.replace(block, aside=True, rope=rope)


def with_small_matrices(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set the rank of the small matrices of each use of a shared block."""
    config = configuration(hf_config)
    rank = config.positive("adapter_rank", 128)
    mlp = msgspec.structs.replace(spec.mlp, low_rank=rank)
    own = rank if config.flag("use_shared_attention_adapter") else 0
    config.positive("num_mem_blocks", 1)  # read for the names of tensors
    return msgspec.structs.replace(spec, mlp=mlp, heads=msgspec.structs.replace(spec.heads, low_rank=own))


def weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for tensor names: the parts of a layer are those of one block, or of two.

    The matrices of a shared block stand in the first layer that uses it, with the small matrices of all its uses.
    """
    config = configuration(hf_config)
    kinds = _kinds(config)
    hybrids = [layer for layer, kind in enumerate(kinds) if kind == "hybrid"]
    count = min(config.positive("num_mem_blocks", 1), len(hybrids))
    place = {layer: layer + sum(1 for one in hybrids if one < layer) for layer in range(len(kinds))}
    rules: list[WeightRule] = []
    for number, layer in enumerate(hybrids[count:]):
        same = rf"model\.layers\.{layer}\.shared_transformer\..*"
        rules.append(Ignored(same, f"the same tensors as of layer {hybrids[number % count]}", apart=True))
    for layer in range(len(kinds)):
        prefix, first = rf"^model\.layers\.{layer}\.", place[layer]
        if layer not in hybrids:
            rules.append(Rename(prefix, f"blocks.{first}."))
            continue
        rules.append(Rename(rf"{prefix}linear\.", f"blocks.{first}.aside_proj."))
        rules.append(Rename(rf"{prefix}mamba_decoder\.", f"blocks.{first + 1}."))
        rules += _small(prefix + r"shared_transformer\.", [place[one] for one in hybrids])
        rules.append(Rename(rf"{prefix}shared_transformer\.", f"blocks.{first}."))
    rules.append(Rename(r"^blocks\.", "model.layers."))
    rules += SHARED
    rules += modules(("mamba", "mixer"), ("model.final_layernorm", "model.norm"))
    for number in range(count):
        first, *others = (place[layer] for layer in hybrids[number::count])
        shared = r"(self_attn\.[qkvo]_proj|mlp\.(?:gate_up|down)_proj|input_layernorm|post_attention_layernorm)"
        to = tuple(rf"model.layers.{other}.\1.\2" for other in others)
        rules.append(Copied(rf"model\.layers\.{first}\.{shared}\.(weight|bias)", to, apart=True))
    return tuple(rules)


def _small(prefix: str, blocks: list[int]) -> list[Rename]:
    """Return the rules for the small matrices of a shared block: number n of a list is that of use n. blocks: of each use."""
    rules = []
    for use, block in enumerate(blocks):
        gates = rf"feed_forward\.gate_up_proj_adapter_list\.{use}\."
        inputs = rf"self_attn\.linear_([qkv])_adapter_list\.{use}\."
        rules.append(Rename(prefix + gates, f"blocks.{block}.mlp.low_rank.", apart=True))
        rules.append(Rename(prefix + inputs, rf"blocks.{block}.self_attn.\1_low_rank.", apart=True))
    return rules


ROWS = (
    Family(
        name="zamba2",
        model_types=("zamba2",),
        architectures=("Zamba2ForCausalLM",),
        keys={"layer_types": "layers_block_type"},
        neutral={
            "chunk_size": "the same numbers in pieces",
            "time_step_max": "weights are loaded",
            "time_step_floor": "weights are loaded",
            "use_conv_bias": "the convolution has a bias",
            "use_mamba_kernels": "kernels are plugins here",
            "num_logits_to_keep": "a request says which it needs",
            "attention_hidden_size": "twice the hidden size",
            "attention_head_dim": "twice the hidden size over the number of heads",
            "mamba_headdim": "the expanded size over the number of heads",
            "kv_channels": "heads have twice as many numbers",
            "num_query_groups": "num_key_value_heads says it",
            "hybrid_layer_ids": "layers_block_type says it",
        },
        usual=usual,
        eps_default=1e-5,
        tied_by_default=True,
        biases={"query": False, "key": False, "value": False, "out": False, "mlp": "add_bias_linear"},
        fused_gate_up=True,
        state=mamba2.zamba2,
        block=aside,
        adjust=with_small_matrices,
        weights=weights,
    ),
)
