"""Cohere: parallel blocks, layer norms, windows with rotary embedding."""

from __future__ import annotations

from core.models.families.row import Family, HeadNorm

ROWS = (
    Family(
        name="cohere",
        model_types=("cohere",),
        architectures=("CohereForCausalLM",),
        order="parallel",
        norm="layer",
        interleaved=True,
        tied_by_default=True,
        biases={"mlp": False},
        qk_norm=HeadNorm(over="heads", key="use_qk_norm"),
        scalars={"logits": "logit_scale"},
    ),
    Family(
        name="cohere2",
        model_types=("cohere2",),
        architectures=("Cohere2ForCausalLM",),
        wrappers=("cohere2_vision", "aya_vision"),
        order="parallel",
        norm="layer",
        interleaved=True,
        unrotated="full",
        full_every=4,
        tied_by_default=True,
        biases={"mlp": False},
        scalars={"logits": "logit_scale"},
    ),
)
