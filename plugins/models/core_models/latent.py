"""Dense models with latent attention."""

from __future__ import annotations

from typing import Final

from core_models.scaled import scaled_by_depth
from core_runtime.models.families.row import Family

NEUTRAL: Final = {
    "head_dim": "the parts of heads have sizes of their own",
    "num_key_value_heads": "every head has keys of its own",
    "qk_head_dim": "the sum of two other sizes",
}

ROWS = (
    Family(
        name="minicpm3",
        model_types=("minicpm3",),
        architectures=("MiniCPM3ForCausalLM",),
        fixed={"rope_interleave": False},
        neutral=NEUTRAL,
        latent=True,
        scalars={"embed": "scale_emb"},
        adjust=scaled_by_depth,
    ),
    Family(
        name="youtu",
        model_types=("youtu",),
        architectures=("YoutuForCausalLM",),
        neutral=NEUTRAL,
        latent=True,
        biases={"mlp": False},
    ),
)
