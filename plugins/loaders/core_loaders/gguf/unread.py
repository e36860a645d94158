"""Metadata keys of an architecture that were not read: the ignorable ones, and the rejection of the rest.

Owns: the list of ignorable keys. Never does: interpret it. Called by: `translate`, after the configuration was read.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.api.errors import CheckpointError
from core_loaders.gguf.metadata import Metadata

NEUTRAL = {
    "vocab_size": "the embedding's rows count",
    "tensor_data_layout": "the order of rows that the architecture has anyway",
    "rope.scaling.finetuned": "says how the scaling came about",
    "rope.scaling.original_context_length": "of scalings that are refused",
    "attention.key_length_swa": "checked with the shapes of tensors",
    "attention.value_length_swa": "checked with the shapes of tensors",
}
"""Key after the architecture's name → why it changes nothing here."""

NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,),
    "use_parallel_residual": (False,),
}
"""Key after the architecture's name → values that change nothing."""


def check_unread(metadata: Metadata, prefix: str, neutral: Mapping[str, str]) -> None:
    """Raise CheckpointError for a key of the architecture that was not read and may change results."""
    namespace = f"{prefix}."
    for key in metadata.unread(namespace):
        name = key.removeprefix(namespace)
        value = metadata.values[key]
        if name in NEUTRAL or name in neutral or value in NEUTRAL_VALUES.get(name, ()):
            continue
        raise CheckpointError(
            f"{metadata.path}: metadata key '{key}' is {value!r:.60}, which is not understood for this architecture, so "
            "results could be wrong. Use the model's safetensors checkpoint."
        )
