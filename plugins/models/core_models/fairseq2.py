"""The llama that fairseq2 saves: names of its own, and neighbours as rotary pairs. Its `model_type` is llama's.

Owns: these differences. Never does: open a file. Called by: the row of llama, for checkpoints whose architecture says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core_runtime.models.configuration import configuration
from core_runtime.models.weight_rules import Rename, WeightRule, modules
from core_runtime.specs.block_spec import BlockSpec
from core_runtime.specs.decoder_spec import DecoderSpec

ARCHITECTURE: Final = "Fairseq2LlamaForCausalLM"
NAMES: Final = (
    Rename(r"^model\.(?=decoder|final_proj\.)", ""),
    *modules(
        ("decoder_frontend.embed", "model.embed_tokens"),
        ("decoder.layers", "model.layers"),
        ("decoder.layer_norm", "model.norm"),
        ("final_proj", "lm_head"),
        ("self_attn_layer_norm", "input_layernorm"),
        ("ffn_layer_norm", "post_attention_layernorm"),
        ("self_attn.output_proj", "self_attn.o_proj"),
        ("ffn.gate_proj", "mlp.gate_proj"),
        ("ffn.inner_proj", "mlp.up_proj"),
        ("ffn.output_proj", "mlp.down_proj"),
    ),
)
"""Names in fairseq2's files, under the key of the model in a file that has one."""


def _is_ours(hf_config: Mapping[str, Any]) -> bool:
    """Whether a configuration names fairseq2's architecture."""
    return ARCHITECTURE in (configuration(hf_config).values_given.get("architectures") or ())


def neighbours(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Make neighbours the pairs that rotate, as the rows of queries and keys lie in the file."""
    if block.rope is None or not _is_ours(hf_config):
        return block
    return msgspec.structs.replace(block, rope=msgspec.structs.replace(block.rope, interleaved=True))


def names(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for tensor names; none for other llamas."""
    return NAMES if _is_ours(hf_config) else ()
