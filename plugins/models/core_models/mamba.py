"""Mamba 1 and 2, alone: every layer is a mixer with a state, and nothing else."""

from __future__ import annotations

from typing import Final

from core_runtime.models.families.row import Family
from core_runtime.models.state_layers import mamba1, mamba2
from core_runtime.models.weight_rules import Rename, modules

WEIGHTS: Final = (
    Rename(r"^backbone\.", "model."),
    *modules(("model.embeddings", "model.embed_tokens"), ("model.embedding", "model.embed_tokens"), ("norm_f", "norm")),
    Rename(r"(model\.layers\.\d+)\.norm\.", r"\1.input_layernorm."),
)
"""Rules for the checkpoints' tensor names outside mixers."""
NEUTRAL: Final = {
    "time_step_*": "weights are loaded",
    "rescale_prenorm_residual": "weights are loaded",
    "residual_in_fp32": "the residual stream has the type of activations",
    "chunk_size": "the same numbers in pieces",
}
CHANNELS: Final = {"intermediate_size": "intermediate_size"}
"""Key whose default transformers' class computes, so the data about the class does not contain it."""
LONGEST: Final = {"max_position_embeddings": 1 << 20}
"""Context length for models whose configurations have none: nothing in them depends on a position."""

ROWS = (
    Family(
        name="mamba",
        model_types=("mamba",),
        architectures=("MambaForCausalLM", "MambaLMHeadModel"),
        keys=CHANNELS,
        defaults=LONGEST,
        neutral=NEUTRAL,
        tied_by_default=True,
        rotary=False,
        has_mlp=False,
        state=mamba1.mamba,
        weights=WEIGHTS,
    ),
    Family(
        name="falcon_mamba",
        model_types=("falcon_mamba",),
        architectures=("FalconMambaForCausalLM",),
        keys=CHANNELS,
        defaults=LONGEST,
        neutral=NEUTRAL,
        tied_by_default=True,
        rotary=False,
        has_mlp=False,
        state=mamba1.falcon_mamba,
        weights=WEIGHTS,
    ),
    Family(
        name="mamba2",
        model_types=("mamba2",),
        architectures=("Mamba2ForCausalLM",),
        defaults=LONGEST,
        neutral=NEUTRAL,
        rotary=False,
        has_mlp=False,
        state=mamba2.mamba2,
        weights=WEIGHTS,
    ),
)
