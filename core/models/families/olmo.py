"""OLMo: norms behind, or without weights."""

from __future__ import annotations

from core.models.families.row import Family, HeadNorm

ROWS = (
    Family(
        name="olmo",
        model_types=("olmo",),
        architectures=("OlmoForCausalLM",),
        norm="layer",
        norm_weighted=False,
        fixed={"rms_norm_eps": 1e-5},  # its code names the number
        biases={"mlp": False},
        clip="clip_qkv",
    ),
    Family(
        name="olmo2",
        model_types=("olmo2",),
        architectures=("Olmo2ForCausalLM",),
        order="post",
        qk_norm=HeadNorm(over="all"),
        biases={"mlp": False},
    ),
    Family(
        name="olmo3",
        model_types=("olmo3",),
        architectures=("Olmo3ForCausalLM",),
        order="post",
        qk_norm=HeadNorm(over="all"),
        biases={"mlp": False},
        full_every=4,
    ),
)
