"""gpt-oss: sinks, clamped gates, experts with biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_runtime.models.configuration import configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import experts, modules, packed_experts
from core_runtime.specs.block_spec import BlockSpec

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Rotary parameters of gpt-oss, unless the configuration has its own."""


def clamped(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Return the block with a clamped gate in its experts."""
    config = configuration(hf_config)
    alpha = config.number("swiglu_alpha", 1.702)
    limit = config.number("swiglu_limit", 7.0, low=0.0)
    assert block.experts is not None, "every layer has experts"
    own = msgspec.structs.replace(block.experts, activation=f"clamped_swiglu:{alpha:g}:{limit:g}")
    return msgspec.structs.replace(block, experts=own)


ROWS = (
    Family(
        name="gpt_oss",
        model_types=("gpt_oss",),
        architectures=("GptOssForCausalLM",),
        sinks=True,
        qkv_bias=True,
        full_every=2,
        defaults={"rope_parameters": YARN},
        expert_names=("mlp", "gate_proj", "up_proj", "down_proj"),
        experts={"bias": True, "router_bias": True},
        neutral={'hidden_act = "silu"': "its experts have a clamped gate of their own"},
        block=clamped,
        weights=(
            *modules(("mlp.router", "mlp.gate")),
            *experts("mlp", r"experts\.gate_up_proj", r"experts\.down_proj", alternating=True, transposed=True),
            *packed_experts("mlp", r"experts\.gate_up_proj", r"experts\.down_proj", alternating=True),
        ),
    ),
)
