"""Canonical names of the tensors in consolidated files.

Owns: the table of names, and the lists of tensors to split or transpose. Never does: read a weight. Called by: the
mistral loader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from core.api.errors import CheckpointError
from core_runtime.specs.checkpoint import TensorInfo

LAYER = r"layers\.(\d+)\."
EXPERTS = r"(?:feed_forward|block_sparse_moe)\."
MLP = (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"))
LATENT = (
    ("wq_a", "q_a_proj"),
    ("q_a_norm", "q_a_layernorm"),
    ("wq_b", "q_b_proj"),
    ("wkv_a_with_mqa", "kv_a_proj_with_mqa"),
    ("kv_a_norm", "kv_a_layernorm"),
    ("wkv_b", "kv_b_proj"),
)
"""Modules of latent attention, whose rotary pairs stay neighbours: the family's row says so."""
TABLE = (
    (r"tok_embeddings\.weight", "model.embed_tokens.weight"),
    (r"norm\.weight", "model.norm.weight"),
    (r"output\.weight", "lm_head.weight"),
    (r"eagle_linear\.weight", "fc.weight"),
    (LAYER + r"attention_norm\.weight", r"model.layers.\1.input_layernorm.weight"),
    (LAYER + r"ffn_norm\.weight", r"model.layers.\1.post_attention_layernorm.weight"),
    (LAYER + r"attention\.w([qkvo])\.weight", r"model.layers.\1.self_attn.\2_proj.weight"),
    *((LAYER + rf"feed_forward\.{own}\.weight", rf"model.layers.\1.mlp.{name}.weight") for own, name in MLP),
    *((LAYER + rf"attention\.{own}\.weight", rf"model.layers.\1.self_attn.{name}.weight") for own, name in LATENT),
    (LAYER + r"gate\.weight", r"model.layers.\1.mlp.gate.weight"),
    *(
        (LAYER + rf"shared_experts\.{own}\.weight", rf"model.layers.\1.mlp.shared_experts.{name}.weight")
        for own, name in MLP
    ),
    *(
        (LAYER + rf"experts\.(\d+)\.{own}\.weight", rf"model.layers.\1.mlp.experts.\2.{name}.weight")
        for own, name in MLP
    ),
    (LAYER + EXPERTS + r"gate\.weight", r"model.layers.\1.block_sparse_moe.gate.weight"),
    (
        LAYER + EXPERTS + r"experts\.(\d+)\.(w[123])\.weight",
        r"model.layers.\1.block_sparse_moe.experts.\2.\3.weight",
    ),
)
KINDS = {
    "qscale_weight": "weight_scale",
    "qscale_act": "input_scale",
    "weight_scale": "weight_scale",
    "input_scale": "input_scale",
    "weight_packed": "weight_packed",
    "weight_shape": "weight_shape",
    "weight_global_scale": "weight_global_scale",
    "input_global_scale": "input_global_scale",
}
"""Tensors of a quantized matrix that accompany or replace its `weight`."""
STACKED = LAYER + r"block_sparse_moe\.(w[123])"
"""The rows of all experts in one tensor."""


def canonical(path: str, info: TensorInfo, num_experts: int) -> Iterator[TensorInfo]:
    """Yield the canonical name of a tensor, or of its parts. Raises CheckpointError for an unknown name."""
    stem, _, kind = info.name.rpartition(".")
    kept = KINDS.get(kind)
    of_weight = info.name if kept is None else f"{stem}.weight"
    for pattern, name in TABLE:
        found = re.fullmatch(pattern, of_weight)
        if found is None:
            continue
        renamed = found.expand(name)
        if kept is not None:
            renamed = renamed.removesuffix("weight") + kept
        yield msgspec.structs.replace(info, name=renamed)
        return
    found = re.fullmatch(STACKED, info.name)
    if found is None:
        raise CheckpointError(
            f"{path}: tensor '{info.name}' has no place in a language model of Mistral; use the model in Hugging Face's layout."
        )
    layer, matrix = found.groups()
    rows = info.shape[0]
    if not num_experts or rows % num_experts or len(info.shape) != 2:
        raise CheckpointError(
            f"{path}: tensor '{info.name}' of shape {list(info.shape)} cannot be cut into {num_experts} experts."
        )
    shape = (rows // num_experts, info.shape[1])
    nbytes = info.nbytes // num_experts
    for expert in range(num_experts):
        yield msgspec.structs.replace(
            info,
            name=f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{matrix}.weight",
            shape=shape[::-1] if matrix == "w2" else shape,
            nbytes=nbytes,
            offset=info.offset + expert * nbytes,
        )


def is_turned(info: TensorInfo) -> bool:
    """Whether the file stores the tensor transposed, as it does the experts' stacked second matrices."""
    found = re.fullmatch(STACKED, info.source)
    return found is not None and found[2] == "w2"
