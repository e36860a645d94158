"""Llamas whose MLP has no gate: Arcee, Apertus, Jais 2, Nemotron, nanochat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core_runtime.models.families.row import Family, HeadNorm
from core_runtime.models.weight_rules import modules
from core_runtime.specs.block_spec import BlockSpec

LLAMA3_OF_APERTUS: Final[dict[str, Any]] = {
    "rope_type": "llama3",
    "rope_theta": 12000000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Rotary parameters of Apertus for a configuration without `rope_parameters`."""
XIELU: Final = (("act_fn.alpha_p", (1,)), ("act_fn.alpha_n", (1,)), ("act_fn.beta", ()), ("act_fn.eps", ()))
"""Tensors of the xIELU activation → shapes."""


def turned_backwards(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Return the block with a rotary embedding in the opposite direction."""
    assert block.rope is not None, "every layer has a rotary embedding"
    rope = msgspec.structs.replace(block.rope, backwards=True)
    return msgspec.structs.replace(block, rope=rope)


ROWS = (
    Family(
        name="arcee",
        model_types=("arcee",),
        architectures=("ArceeForCausalLM",),
        gated=False,
    ),
    Family(
        name="apertus",
        model_types=("apertus",),
        architectures=("ApertusForCausalLM",),
        defaults={"rope_parameters": LLAMA3_OF_APERTUS},
        gated=False,
        activation_tensors=XIELU,
        qk_norm=True,
        weights=modules(
            ("attention_layernorm", "input_layernorm"), ("feedforward_layernorm", "post_attention_layernorm")
        ),
    ),
    Family(
        name="jais2",
        model_types=("jais2",),
        architectures=("Jais2ForCausalLM",),
        norm="layer",
        norm_bias=True,
        gated=False,
    ),
    Family(
        name="nemotron",
        model_types=("nemotron",),
        architectures=("NemotronForCausalLM",),
        norm="layer",
        norm_bias=True,
        norm_offset=1.0,
        gated=False,
    ),
    Family(
        name="nanochat",
        model_types=("nanochat",),
        architectures=("NanoChatForCausalLM",),
        norm_weighted=False,
        embed_norm=True,
        qk_norm=HeadNorm(after_rope=True, weighted=False),
        gated=False,
        block=turned_backwards,
        weights=modules(("mlp.fc1", "mlp.up_proj"), ("mlp.fc2", "mlp.down_proj")),
    ),
)
