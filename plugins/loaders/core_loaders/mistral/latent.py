"""Parameters of Mistral's models with latent attention and many experts (Mistral Large 3) in the style of `config.json`.

Owns: the names of these parameters. Never does: ignore one that changes what a model computes. Called by: `params`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from core.api.errors import CheckpointError

LATENT: Final = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
EXPERTS: Final = {
    "num_experts": "n_routed_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "expert_hidden_dim": "moe_intermediate_size",
    "num_shared_experts": "n_shared_experts",
    "num_expert_groups": "n_group",
    "num_expert_groups_per_tok": "topk_group",
    "first_k_dense_replace": "first_k_dense_replace",
}
NEUTRAL: Final = frozenset({"expert_parallel", "expert_model_parallel"})
"""Parameters of training."""
ONLY: Final = {"route_every_n": 1, "renorm_strategy": "WEIGHTS", "use_load_balancing_bias": False}
"""Parameters that have one value in all models."""


def is_latent(params: dict[str, Any]) -> bool:
    """Whether a model's attention is latent."""
    return any(params.get(key) is not None for key in LATENT)


def latent(path: Path, params: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """Return what a model with latent attention has beside the parameters of all models. Raises CheckpointError.

    rope: parameters of its rotation, under the names of `config.json`.
    """
    moe = params.get("moe")
    if not isinstance(moe, dict) or "llama_4_scaling_beta" not in rope or params.get("sliding_window"):
        raise CheckpointError(
            f"{path}: has latent attention ({', '.join(key for key in LATENT if key in params)}); expected moe, yarn and "
            "llama_4_scaling with it, and no sliding_window. Use the model in Hugging Face's layout."
        )
    if "attention_factor" not in rope:
        raise CheckpointError(
            f"{path}: yarn.apply_scale is true in a model with latent attention; expected false. Use the model in Hugging "
            "Face's layout."
        )
    found: dict[str, Any] = {"model_type": "mistral4", "architectures": ["Mistral4ForCausalLM"], "norm_topk_prob": True}
    for key in LATENT:
        found[key] = _integer(path, key, params.get(key), 1)
    unknown = sorted(moe.keys() - EXPERTS.keys() - NEUTRAL - ONLY.keys() - {"routed_scale"})
    if unknown:
        known = ", ".join((*EXPERTS, "routed_scale"))
        raise CheckpointError(f"{path}: moe.{unknown[0]} is not known; expected {known}.")
    for key, value in ONLY.items():
        if moe.get(key, value) != value:
            raise CheckpointError(f"{path}: moe.{key} is {moe[key]!r:.60}; expected {value!r}.")
    for key, name in EXPERTS.items():
        usual = {"num_expert_groups": 1, "num_expert_groups_per_tok": 1, "first_k_dense_replace": 0}.get(key)
        found[name] = _integer(path, f"moe.{key}", moe.get(key, usual), 0 if usual == 0 else 1)
    scale = moe.get("routed_scale", 1.0)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < 1e6:
        raise CheckpointError(f"{path}: moe.routed_scale is {scale!r:.60}, expected a number above 0.")
    return {**found, "routed_scaling_factor": float(scale)}


def _integer(path: Path, key: str, value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise CheckpointError(f"{path}: {key} is {value!r:.60}, expected an integer from {least}.")
    return value
