"""Encoders: models whose output is their hidden states."""

from __future__ import annotations

from typing import Final

from core_loaders.gguf.architectures import Architecture, Config
from core_loaders.gguf.pooling import RANK, pooling_of
from core_loaders.gguf.rows.windows import LAYER_EPS
from core_loaders.gguf.source import Source

SEGMENTS: Final = "token_types.weight"
HEAD: Final = ("cls", "cls.output")
"""Layers of a head that scores pairs, in order."""
NAMES: Final = {
    "token_types": "model.token_type_embeddings",
    "attn_output_norm": "post_attention_layernorm",
    "layer_output_norm": "post_feedforward_layernorm",
    "cls": "classes.0",
    "cls.output": "classes.1",
}
NEUTRAL: Final = {
    "attention.causal": "the family's row says that tokens see those behind them",
    "classifier.output_labels": "names for a head, which is read where there is one",
}


def bert(source: Source, config: Config) -> None:
    """Require a key head for every query head; the size of the segment table gives the segments, and its layers give a
    ranking head.
    """
    del config["num_key_value_heads"], config["head_dim"]
    config["type_vocab_size"] = _segments(source)
    layers = [name for name in HEAD if f"{name}.weight" in source.tensors]
    if pooling_of(source) != RANK and not layers:
        return
    if tuple(layers) != HEAD:
        raise source.fail(
            f"ranks with {' and '.join(layers) or 'no tensors'}; expected {' and '.join(HEAD)}. Conversions of BERT leave its "
            "pooler out, without which scores are others."
        )
    labels = source.metadata.items(source.key("classifier.output_labels"), str, optional=True)
    count = source.tensors["cls.output.weight"].shape[0]
    config["architectures"] = ["BertForSequenceClassification"]
    config["id2label"] = {str(index): str(label) for index, label in enumerate(labels or range(count))}


def _segments(source: Source) -> int:
    """Return the rows of the segment table. Raises CheckpointError without one."""
    if SEGMENTS not in source.tensors:
        raise source.fail(f"lacks the tensor '{SEGMENTS}'.")
    return source.tensors[SEGMENTS].shape[0]


ROWS: Final = {
    "bert": Architecture(
        "bert",
        "BertModel",
        keys=LAYER_EPS,
        constants={"hidden_act": "gelu"},
        names=NAMES,
        rotary="none",
        adjust=bert,
        neutral=NEUTRAL,
    ),
}
