"""Tiny configurations of encoders. Data alone, see `architectures`."""

from typing import Any

Changes = dict[str, Any]

STRETCHED = {"rope_type": "linear", "rope_theta": 5000.0 * 8, "factor": 8.0 ** (2 / 12)}
"""What the first configurations of GTE call `ntk`, with a factor of 8 and heads of 12 numbers."""

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
    "gte": {
        "plain": {"pad_token_id": 1},
        "no segments": {"type_vocab_size": 0, "pad_token_id": 1},
        "stretched": {"pad_token_id": 1, "rope_parameters": STRETCHED},
    },
    "jina_embeddings_v3": {"plain": {"pad_token_id": 1}},
}
"""Architecture → variant → values of its own, over the common ones. Their results are hidden states."""
