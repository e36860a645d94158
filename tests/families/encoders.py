"""Tiny configurations of encoders. Data alone, see `architectures`."""

from typing import Any

Changes = dict[str, Any]

ENCODERS: dict[str, dict[str, Changes]] = {
    "bert": {"plain": {}},
    "roberta": {"plain": {"pad_token_id": 1}},
    "xlm-roberta": {"plain": {"pad_token_id": 1}},
    "camembert": {"plain": {"pad_token_id": 1}},
    "distilbert": {"plain": {"dim": 48, "hidden_dim": 88, "n_layers": 3, "n_heads": 4}},
    "modernbert": {
        "plain": {"norm_bias": True, "mlp_bias": True, "local_attention": 14, "global_attn_every_n_layers": 2}
    },
    "nomic_bert": {"plain": {}},
}
"""Architecture → variant → values of its own, over the common ones. Their results are hidden states."""
