"""The index of latent attention (DeepSeek-V3.2, GLM-5), from a configuration. Torch-free.

Owns: its keys, and the layers that have one. Never does: know its arithmetic (`core.api.specs.IndexSpec` describes it).
Called by: rows of families.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core.api.specs import IndexSpec, LatentSpec
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.weight_rules import Ignored, WeightRule, modules
from core_runtime.specs.block_spec import BlockSpec
from core_runtime.specs.decoder_spec import DecoderSpec

ALL_CHOSEN: Final = "sequences are no longer than index_topk, so the index would choose every key"
INDEX_NEUTRAL: Final = {
    "mlp_bias": "MLPs have no biases",
    "index_n_heads": ALL_CHOSEN,
    "index_head_dim": ALL_CHOSEN,
}
KINDS: Final = {"F": "full", "S": "shared"}


def indexed(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Return the block with an index, unless no sequence is longer than what it would choose. Raises UserError."""
    return _with_index(configuration(hf_config), block, reuses=False)


def sometimes_indexed(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Return the block with an index, or with the choice of the nearest earlier one (IndexCache, arXiv 2603.12201)."""
    config = configuration(hf_config)
    kinds = _kinds(config)
    if kinds[0] == "shared":
        config.fail("indexer_types", kinds, "a first layer that is full: there is no earlier choice to reuse")
    return _with_index(config, block, reuses=index < len(kinds) and kinds[index] == "shared")


def index_weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return a rule for the tensors of an index in a model without one."""
    has_index = any(isinstance(mixer, LatentSpec) and mixer.index is not None for mixer in spec.mixers)
    return () if has_index else (Ignored(r"model\.layers\.\d+\.self_attn\.indexer\..*", ALL_CHOSEN),)


def gated_and_indexed(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Return the block with an index, and with gates of the norms before attention and experts (A.X K2)."""
    config = configuration(hf_config)
    if config.get("q_lora_rank") is None:
        config.fail("q_lora_rank", None, "a positive number: the gate of attention reads the latent of queries")
    roles = ("input",) if block.experts is None else ("input", "pre_mlp")
    rank = config.positive("gated_norm_rank")
    return msgspec.structs.replace(indexed(config, index, block), gated_norms=roles, gate_rank=rank)


def gated_index_weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for such a model's norms, whose weights and gates are modules of their own."""
    pairs = [("W_down", "gate_in"), ("W_up", "gate_out"), ("q_gate_proj", "q_b_proj")]
    for name in ("input_layernorm", "post_attention_layernorm"):
        pairs += (
            (f"{name}.norm", name),
            (f"{name}.mlp.fc1", f"{name}.gate_in"),
            (f"{name}.mlp.fc2", f"{name}.gate_out"),
        )
    return (*modules(*pairs), *index_weights(hf_config, spec))


def _with_index(config: Configuration, block: BlockSpec, *, reuses: bool) -> BlockSpec:
    mixer = block.mixer
    assert isinstance(mixer, LatentSpec), "families with an index have latent attention"
    top_k = config.positive("index_topk", 2048)
    if config.positive("max_position_embeddings") <= top_k:
        return block
    if mixer.q_rank is None:
        config.fail("q_lora_rank", None, "a positive number: the index reads the latent of queries")
    size = config.positive("index_head_dim")
    if size < mixer.rope_size:
        config.fail("index_head_dim", size, f"at least qk_rope_head_dim, {mixer.rope_size}")
    choice = IndexSpec(config.positive("index_n_heads"), size, top_k, reuses)
    return msgspec.structs.replace(block, mixer=msgspec.structs.replace(mixer, index=choice))


def _kinds(config: Configuration) -> list[str]:
    """Return the kind of each layer, `full` or `shared`."""
    count = config.positive("num_hidden_layers")
    kinds = config.list_of("indexer_types", str)
    pattern = config.get("index_topk_pattern")
    every = config.count("index_topk_freq", 1)
    offset = config.count("index_skip_topk_offset", 2)
    if not kinds and isinstance(pattern, str):
        kinds = [KINDS.get(letter, letter) for letter in pattern]
    elif not kinds and pattern is not None:
        kinds = config.list_of("index_topk_pattern", str)
    elif not kinds:
        kinds = ["shared" if max(layer - offset + 1, 0) % max(every, 1) else "full" for layer in range(count)]
    if len(kinds) < count or not set(kinds) <= set(KINDS.values()):
        name = "indexer_types" if config.get("indexer_types") else "index_topk_pattern"
        config.fail(name, kinds, f"`full` or `shared` for each of {count} layers")
    return kinds
