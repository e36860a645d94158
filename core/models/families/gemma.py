"""Gemma: norms with an offset, scaled embeddings, windows, soft caps."""

from __future__ import annotations

from core.models.families.row import Family

ROWS = (
    Family(
        name="gemma",
        model_types=("gemma",),
        architectures=("GemmaForCausalLM",),
        tied_by_default=True,
        norm_offset=1.0,
        scale_embedding=True,
    ),
    Family(
        name="gemma2",
        model_types=("gemma2",),
        architectures=("Gemma2ForCausalLM",),
        neutral={"hidden_act": "hidden_activation says it"},
        tied_by_default=True,
        norm_offset=1.0,
        sandwich_norms=True,
        scale_embedding=True,
        full_every=2,
    ),
    Family(
        name="gemma3",
        model_types=("gemma3_text",),
        architectures=("Gemma3ForCausalLM",),
        fixed={"attn_logit_softcapping": None},  # its own code has the key and does nothing with it
        tied_by_default=True,
        norm_offset=1.0,
        qk_norm=True,
        sandwich_norms=True,
        scale_embedding=True,
        full_every=6,
    ),
)
