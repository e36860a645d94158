"""From a GGUF header to the canonical terms: configuration in Hugging Face's style and tensors by canonical name.

Owns: the translation and the check that configuration and tensor table agree. Never does: read weights; accept a tensor
that the architecture's table lacks. Called by: the GGUF loader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from core.api.checkpoint import TensorInfo
from core.api.errors import CheckpointError, nearest
from core_plugins.loaders.gguf.architectures import ARCHITECTURES, MODEL, MODEL_OPTIONAL, Architecture
from core_plugins.loaders.gguf.metadata import Metadata
from core_plugins.loaders.gguf.reader import GGUFTensor
from core_plugins.loaders.gguf.rotary import FACTORS, rotary_scaling
from core_plugins.loaders.gguf.unread import check_unread

MAX_EXTENT = 1 << 24
MAX_LAYERS = 4096
MAX_HEADS = 4096
MAX_HEAD_SIZE = 4096
LAYER_NAME = re.compile(r"blk\.(\d{1,7})\.(.+)")


def find_architecture(metadata: Metadata) -> tuple[str, Architecture]:
    """The file's architecture. Raises CheckpointError when the table has no row for it."""
    name = metadata.text("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(
            f"{metadata.path}: architecture '{name}' is not supported; expected one of {known}."
            f"{nearest(name, ARCHITECTURES)}"
        )
    return name, ARCHITECTURES[name]


def translate_config(metadata: Metadata, tensors: list[GGUFTensor]) -> dict[str, Any]:
    """The configuration in the style of `config.json`. Raises CheckpointError for absurd values."""
    prefix, architecture = find_architecture(metadata)
    by_name = {tensor.name: tensor for tensor in tensors}
    embeddings = by_name.get("token_embd.weight")
    if embeddings is None:
        raise CheckpointError(f"{metadata.path}: tensor 'token_embd.weight' is missing; is this a language model?")

    def extent(key: str, default: int | None = None, high: int = MAX_EXTENT) -> int:
        return metadata.integer(f"{prefix}.{key}", 1, high, default)

    hidden = extent("embedding_length")
    heads = extent("attention.head_count", high=MAX_HEADS)
    head_dim = _head_size(metadata, prefix, max(hidden // heads, 1))
    config: dict[str, Any] = {
        "model_type": architecture.model_type,
        "architectures": [architecture.hf_class],
        "hidden_size": hidden,
        "intermediate_size": extent("feed_forward_length"),
        "num_hidden_layers": extent("block_count", high=MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": extent("attention.head_count_kv", heads, high=MAX_HEADS),
        "head_dim": head_dim,
        "rms_norm_eps": metadata.number(f"{prefix}.attention.layer_norm_rms_epsilon", 1e-12, 0.1),
        "rope_theta": metadata.number(f"{prefix}.rope.freq_base", 1.0, 1e12, 10000.0),
        "max_position_embeddings": extent("context_length", high=1 << 30),
        "vocab_size": embeddings.shape[0],
        "tie_word_embeddings": "output.weight" not in by_name,
        **architecture.constants,
    }
    if config["num_attention_heads"] % config["num_key_value_heads"]:
        raise CheckpointError(
            f"{metadata.path}: {heads} query heads cannot share {config['num_key_value_heads']} key-value heads evenly."
        )
    if architecture.layer_optional:
        config["attention_bias"] = _has_optional(metadata.path, architecture, config["num_hidden_layers"], by_name)
    scaling = rotary_scaling(metadata, prefix, head_dim, config["rope_theta"], by_name)
    if scaling is not None:
        config["rope_scaling"] = scaling
    if prefix == "gemma3":
        _add_gemma3(config, metadata)
    check_unread(metadata, prefix)
    return config


def _has_optional(path: str, architecture: Architecture, num_layers: int, by_name: Mapping[str, GGUFTensor]) -> bool:
    """Whether the layers have their optional tensors: all of them, or none. Raises CheckpointError."""
    present: list[str] = []
    missing: list[str] = []
    for layer in range(num_layers):
        for short in architecture.layer_optional:
            name = f"blk.{layer}.{short}"
            if name in by_name:
                present.append(name)
            else:
                missing.append(name)
    if present and missing:
        raise CheckpointError(
            f"{path}: tensor '{present[0]}' is there and '{missing[0]}' is not; expected all biases of attention or none. "
            "Use the model's safetensors checkpoint."
        )
    return bool(present)


def _head_size(metadata: Metadata, prefix: str, default: int) -> int:
    """The size of a head, equal for queries, keys, values and the rotary part. Raises CheckpointError."""
    key_length = f"{prefix}.attention.key_length"
    rotary_length = f"{prefix}.rope.dimension_count"
    if key_length in metadata:
        head_dim = metadata.integer(key_length, 1, MAX_HEAD_SIZE)
    else:
        head_dim = metadata.integer(rotary_length, 1, MAX_HEAD_SIZE, default)
    value_size = metadata.integer(f"{prefix}.attention.value_length", 1, MAX_EXTENT, head_dim)
    rotary_size = metadata.integer(rotary_length, 1, MAX_EXTENT, head_dim)
    if value_size != head_dim or rotary_size != head_dim:
        raise CheckpointError(
            f"{metadata.path}: key, value and rotary head sizes differ; expected all to be {head_dim}."
        )
    if head_dim % 2:
        raise CheckpointError(f"{metadata.path}: the head size is {head_dim}; rotary positions need an even one.")
    return head_dim


def _add_gemma3(config: dict[str, Any], metadata: Metadata) -> None:
    """Every sixth layer attends to everything, unless the file says otherwise; the others see a window, if there is one.

    The format implies the query scale.
    """
    num_layers = config["num_hidden_layers"]
    window = metadata.integer("gemma3.attention.sliding_window", 0, 1 << 30, 0)
    period = metadata.integer("gemma3.attention.sliding_window_pattern", 1, MAX_LAYERS, 6)
    if window == 0:
        period = 1
    config["sliding_window"] = window or None
    config["layer_types"] = ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(num_layers)]
    config["rope_local_base_freq"] = metadata.number("gemma3.rope.freq_base_swa", 1.0, 1e12, 10000.0)
    # Only the 27B model, which has 62 layers, scales queries by its hidden size per head.
    scalar = config["head_dim"]
    if num_layers == 62:
        scalar = config["hidden_size"] // config["num_attention_heads"]
    config["query_pre_attn_scalar"] = scalar
    config["attn_logit_softcapping"] = None
    cap = metadata.number("gemma3.final_logit_softcapping", 0.0, 1e6, 0.0)
    config["final_logit_softcapping"] = cap or None


def translate_tensors(
    path: str, prefix: str, config: dict[str, Any], tensors: list[GGUFTensor]
) -> dict[str, TensorInfo]:
    """The tensors by canonical name, each with the shape that the configuration implies and none missing or left over."""
    architecture = ARCHITECTURES[prefix]
    num_layers = config["num_hidden_layers"]
    sizes = {
        "H": config["hidden_size"],
        "I": config["intermediate_size"],
        "D": config["head_dim"],
        "Q": config["num_attention_heads"] * config["head_dim"],
        "K": config["num_key_value_heads"] * config["head_dim"],
        "V": config["vocab_size"],
    }
    found: dict[str, TensorInfo] = {}
    for tensor in tensors:
        if tensor.name == FACTORS:
            continue  # part of the configuration
        canonical, letters = _place(path, prefix, tensor.name, num_layers)
        expected = tuple(sizes[letter] for letter in letters)
        if tensor.shape != expected:
            raise CheckpointError(
                f"{path}: tensor '{tensor.name}' has shape {tensor.shape}; the configuration implies {expected}."
            )
        _check_type(path, tensor)
        found[canonical] = TensorInfo(
            canonical, expected, tensor.type.name, tensor.nbytes, 0, tensor.offset, tensor.name
        )
    _check_complete(path, architecture, num_layers, found)
    return found


def _check_type(path: str, tensor: GGUFTensor) -> None:
    """Norms and biases are floating-point numbers, and no matrix is made of integers. Raises CheckpointError."""
    name = tensor.type.name
    is_float = name in ("F32", "F16", "BF16", "F64")
    if is_float or (tensor.type.packed and len(tensor.shape) > 1):
        return
    raise CheckpointError(
        f"{path}: tensor '{tensor.name}' is of type {name}; expected floating-point numbers or, for a matrix, a quantized "
        "type. The file is damaged."
    )


def _place(path: str, prefix: str, name: str, num_layers: int) -> tuple[str, str]:
    """The canonical name of a tensor, and its shape in the letters of the architecture's table. Raises CheckpointError."""
    architecture = ARCHITECTURES[prefix]
    match = LAYER_NAME.fullmatch(name)
    if match:
        short = match[2]
        table = {**architecture.layer, **architecture.layer_optional}
    else:
        short = name
        table = {**MODEL, **MODEL_OPTIONAL}
    if short not in table:
        hint = nearest(short, table)
        raise CheckpointError(f"{path}: tensor '{name}' is unknown in architecture '{prefix}'.{hint}")
    canonical, letters = table[short]
    if not match:
        return canonical, letters
    layer = int(match[1])
    if layer >= num_layers:
        raise CheckpointError(
            f"{path}: tensor '{name}' lies beyond the {num_layers} layers that {prefix}.block_count announces."
        )
    return f"model.layers.{layer}.{canonical}", letters


def _check_complete(path: str, architecture: Architecture, num_layers: int, found: dict[str, TensorInfo]) -> None:
    """Raise CheckpointError for the first tensor that is missing."""
    names = [name for name, _ in MODEL.values()]
    for layer in range(num_layers):
        for name, _ in architecture.layer.values():
            names.append(f"model.layers.{layer}.{name}")
    for name in names:
        if name not in found:
            raise CheckpointError(
                f"{path}: no tensor for '{name}', though {num_layers} layers are announced. The file is incomplete."
            )
