"""Llama, and what is a llama but for a few words."""

from __future__ import annotations

from core.models.families import lfm2
from core.models.families.row import Family, HeadNorm

ROWS = (
    Family(name="llama", model_types=("llama",), architectures=("LlamaForCausalLM",)),
    Family(name="mistral", model_types=("mistral",), architectures=("MistralForCausalLM",), full_every=1 << 30),
    Family(
        name="qwen2",
        model_types=("qwen2",),
        architectures=("Qwen2ForCausalLM",),
        windowed="use_sliding_window",
        biases={"query": True, "key": True, "value": True, "out": False},
    ),
    Family(
        name="qwen3",
        model_types=("qwen3",),
        architectures=("Qwen3ForCausalLM",),
        windowed="use_sliding_window",
        qk_norm=True,
    ),
    Family(
        name="granite",
        model_types=("granite",),
        architectures=("GraniteForCausalLM",),
        scalars={
            "embed": "embedding_multiplier",
            "residual": "residual_multiplier",
            "attention": "attention_multiplier",
            "logits": "1/logits_scaling",
        },
    ),
    Family(
        name="olmo2",
        model_types=("olmo2",),
        architectures=("Olmo2ForCausalLM",),
        order="post",
        qk_norm=HeadNorm(over="all"),
    ),
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
    Family(
        name="lfm2",
        model_types=("lfm2",),
        architectures=("Lfm2ForCausalLM",),
        neutral=lfm2.NEUTRAL,
        tied_by_default=True,
        qk_norm=True,
        usual=lfm2.usual,
        state=lfm2.state,
        names=lfm2.NAMES,
    ),
)
