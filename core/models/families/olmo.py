"""OLMo: norms behind, or without weights."""

from __future__ import annotations

from core.models.families.row import Family, HeadNorm

ROWS = (
    Family(
        name="olmo2",
        model_types=("olmo2",),
        architectures=("Olmo2ForCausalLM",),
        order="post",
        qk_norm=HeadNorm(over="all"),
    ),
)
