"""Translation of a GGUF header to a configuration in Hugging Face's style.

Owns: the keys common to all architectures. Never does: read weights, know an architecture by name (its row does).
Called by: the GGUF loader.
"""

from __future__ import annotations

import math
from typing import Any

from core.api.errors import CheckpointError, nearest
from core_loaders.gguf.architectures import Architecture
from core_loaders.gguf.keys import (
    LONGEST,
    MAX_EXTENT,
    MAX_HEAD_SIZE,
    MAX_HEADS,
    MAX_LAYERS,
    NONE_IF_ZERO,
    REQUIRED,
)
from core_loaders.gguf.names import IN_LAYER
from core_loaders.gguf.pooling import pooling_of
from core_loaders.gguf.rotary import rotary_scaling
from core_loaders.gguf.source import Source
from core_loaders.gguf.table import architectures
from core_loaders.gguf.unread import check_unread


def find_architecture(path: str, name: str) -> Architecture:
    """Return a file's architecture. Raises CheckpointError for an unknown one."""
    known = architectures()
    if name not in known:
        listed = ", ".join(sorted(known))
        raise CheckpointError(
            f"{path}: architecture '{name}' is not supported; expected one of {listed}.{nearest(name, known)}"
        )
    return known[name]


def drafting_layers(source: Source) -> int:
    """Return the number of draft layers, which follow the others and are not loaded."""
    return source.integer("nextn_predict_layers", 0, MAX_LAYERS, 0)


def translate_config(source: Source, row: Architecture) -> dict[str, Any]:
    """Return the configuration in the style of `config.json`. Raises CheckpointError for implausible values."""
    embeddings = source.tensors.get("token_embd.weight")
    if embeddings is None:
        raise CheckpointError(f"{source.path}: tensor 'token_embd.weight' is missing; is this a language model?")
    num_layers = source.integer("block_count", 1, MAX_LAYERS) - drafting_layers(source)
    config: dict[str, Any] = {
        "model_type": row.model_type,
        "architectures": [row.hf_class],
        "hidden_size": source.integer("embedding_length", 1, MAX_EXTENT),
        "num_hidden_layers": num_layers,
        "max_position_embeddings": source.integer("context_length", 1, LONGEST),
        "vocab_size": embeddings.shape[0],
        "tie_word_embeddings": "output.weight" not in source.tensors,
        **row.constants,
    }
    if row.attends:
        _add_attention(config, source, row)
    else:
        for name in ("feed_forward_length", "attention.head_count"):
            source.integer(name, 0, 0, 0)  # files of models without these features may store 0
    for name, key in row.keys.items():
        if name not in source and name not in REQUIRED:
            continue
        value = source.value(name)
        if value or name not in NONE_IF_ZERO:
            config[key] = value
    if row.attends:
        _add_rotary(config, source, row)
    for key, names in row.present.items():
        config[key] = _are_there(source, names, num_layers)
    if row.adjust is not None:
        row.adjust(source, config)
    pooling_of(source)  # an unknown value is rejected whatever the model is used for
    check_unread(source.metadata, source.prefix, row.neutral)
    return config


def _add_attention(config: dict[str, Any], source: Source, row: Architecture) -> None:
    """Add the sizes of heads and MLPs."""
    num_layers = config["num_hidden_layers"]
    heads = source.integer("attention.head_count", 1, MAX_HEADS)
    by_layer = source.by_layer("attention.head_count_kv", int, num_layers)
    if by_layer is None:
        kv_heads = source.integer("attention.head_count_kv", 1, MAX_HEADS, heads)
    else:
        kv_heads = _one_of(source, "attention.head_count_kv", by_layer)
    if heads % kv_heads:
        raise CheckpointError(f"{source.path}: {heads} query heads cannot share {kv_heads} key-value heads evenly.")
    config["num_attention_heads"] = heads
    config["num_key_value_heads"] = kv_heads
    config["intermediate_size"] = source.integer("feed_forward_length", 1, MAX_EXTENT)
    usual = max(config["hidden_size"] // heads, 1)
    if row.rotary == "whole":
        usual = source.integer("rope.dimension_count", 1, MAX_HEAD_SIZE, usual)
    config["head_dim"] = source.integer("attention.key_length", 1, MAX_HEAD_SIZE, usual)


def _one_of(source: Source, name: str, by_layer: list[int]) -> int:
    """Return the number shared by all layers that have one. Raises CheckpointError when they differ."""
    found = {count for count in by_layer if count}
    if len(found) != 1 or not 1 <= max(found) <= MAX_HEADS:
        raise source.fail(f"metadata key '{source.key(name)}' is {by_layer!r:.60}; expected one number for all layers.")
    return found.pop()


def _add_rotary(config: dict[str, Any], source: Source, row: Architecture) -> None:
    """Add the rotary base, the rotated share of heads, and the scaling."""
    if row.rotary == "none":
        return
    if row.rotary == "latent":
        size = source.integer("rope.dimension_count", 2, MAX_HEAD_SIZE)
    else:
        size = _rotary_size(config, source, row)
    theta = source.number("rope.freq_base", 1.0, 1e12, 10000.0)
    config["rope_theta"] = theta
    scaling = rotary_scaling(source, size, theta)
    if scaling is not None:
        config["rope_scaling"] = scaling
    if row.rotary == "part":
        config["partial_rotary_factor"] = _share(size, config["head_dim"])


def _share(size: int, whole: int) -> float:
    """Return a fraction whose product with `whole` has the integer part `size`."""
    share = size / whole
    return share if int(whole * share) == size else math.nextafter(share, 1.0)


def _rotary_size(config: dict[str, Any], source: Source, row: Architecture) -> int:
    """Return the rotated numbers per head; queries, keys and values have one size. Raises CheckpointError."""
    head_dim: int = config["head_dim"]
    value_size = source.integer("attention.value_length", 1, MAX_EXTENT, head_dim)
    size = source.integer("rope.dimension_count", 1, MAX_EXTENT, head_dim)
    if value_size != head_dim or size > head_dim or (size != head_dim and row.rotary != "part"):
        raise CheckpointError(f"{source.path}: key, value and rotary head sizes differ; expected all to be {head_dim}.")
    if size % 2:
        raise CheckpointError(f"{source.path}: the head size is {size}; rotary positions need an even one.")
    return size


def _are_there(source: Source, names: tuple[str, ...], num_layers: int) -> bool:
    """Whether layers have these tensors: all layers, or none. Raises CheckpointError otherwise."""
    present: list[str] = []
    missing: list[str] = []
    layers = {int(found[1]) for name in source.tensors if (found := IN_LAYER.fullmatch(name))}
    for layer in sorted(layers & set(range(num_layers))):
        for short in names:
            name = f"blk.{layer}.{short}"
            if name in source.tensors:
                present.append(name)
            else:
                missing.append(name)
    if present and missing:
        raise CheckpointError(
            f"{source.path}: tensor '{present[0]}' is there and '{missing[0]}' is not; expected all biases of attention or "
            "none. Use the model's safetensors checkpoint."
        )
    return bool(present)
