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
        qk_norm=HeadNorm(over="heads", key="use_qk_norm"),
        scalars={"logits": "logit_scale"},
    ),
)
