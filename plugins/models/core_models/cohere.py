"""Cohere: parallel blocks, layer norms, windows with rotary embedding."""

from __future__ import annotations

from core_runtime.models.families.row import Family, HeadNorm

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
        neutral={
            "layer_switch": "sliding_window_pattern says it",
            'order_of_interleaved_layers = "local_attn_first"': "as always",
            'position_embedding_type = "rope_gptj"': "as always",
            "rotary_pct = 1.0": "the whole head rotates",
            "use_embedding_sharing": "tie_word_embeddings says it",
            "use_gated_activation = true": "as always",
            "use_parallel_block = true": "as always",
            "use_parallel_embedding": "how training was divided",
        },
        order="parallel",
        norm="layer",
        interleaved=True,
        unrotated="full",
        full_every=4,
        tied_by_default=True,
        biases={"mlp": False},
        scalars={"logits": "logit_scale"},
    ),
    Family(
        name="cohere_compass",
        model_types=("cohere_compass_text",),
        architectures=("CohereCompassForCausalLM",),
        fixed={"head_dim": None, "sliding_window_pattern": 0},  # its class overwrites the one and never reads the other
        neutral={
            "pooling": "of embeddings of whole texts",
            "sliding_window_pattern": "its class never comes to it",
            "rope_parameters.*mrope_*": "the three positions of a token of text are equal",
        },
        order="parallel",
        norm="layer",
        tied_by_default=True,
        biases={"mlp": False},
        scalars={"logits": "logit_scale"},
    ),
)
