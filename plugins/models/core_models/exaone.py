"""EXAONE 4: norms after attention and MLP, windows, rotary embedding in sliding layers only."""

from __future__ import annotations

from core_runtime.models.families.row import Family

ROWS = (
    Family(
        name="exaone4",
        model_types=("exaone4",),
        architectures=("Exaone4ForCausalLM",),
        neutral={"sliding_window_pattern": "layer_types, beside it, says it"},
        order="post",
        qk_norm=True,
        unrotated="full",
    ),
)
