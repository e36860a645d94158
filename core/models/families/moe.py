"""Llamas with experts."""

from __future__ import annotations

from core.models.families.row import NEVER, Family

ROWS = (
    Family(
        name="mixtral",
        model_types=("mixtral",),
        architectures=("MixtralForCausalLM",),
        full_every=NEVER,
        eps_default=1e-5,
        expert_names=("block_sparse_moe", "w1", "w3", "w2"),
    ),
    Family(
        name="qwen3_moe",
        model_types=("qwen3_moe",),
        architectures=("Qwen3MoeForCausalLM",),
        qk_norm=True,
        windowed="use_sliding_window",
        full_every=NEVER,
        neutral={"max_window_layers": "its windows are of all layers"},
        expert_names=("mlp", "gate_proj", "up_proj", "down_proj"),
        renormalize=False,
    ),
)
