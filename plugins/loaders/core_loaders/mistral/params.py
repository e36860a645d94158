"""Translation of `params.json` to the style of `config.json`.

Owns: the names of Mistral's parameters. Never does: ignore one that changes what a model computes.
Called by: the mistral loader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.api.errors import CheckpointError
from core_loaders.mistral.latent import LATENT, is_latent, latent
from core_loaders.mistral.newer import quantization, rotation

RENAMED = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
}
"""Parameters common to all models."""
OF_EXPERTS = {"num_experts": "num_local_experts", "num_experts_per_tok": "num_experts_per_tok"}
READ = frozenset(
    {
        *RENAMED,
        *LATENT,
        "n_kv_heads",
        "head_dim",
        "norm_eps",
        "rope_theta",
        "sliding_window",
        "max_seq_len",
        "max_position_embeddings",
        "tied_embeddings",
        "moe",
        "yarn",
        "llama_4_scaling",
        "quantization",
    }
)
NEUTRAL = frozenset({"model_type", "activation", "max_batch_size", "dtype"})
"""Parameters that do not affect the computation, or that have only one value."""
DEFAULT_LENGTH = 32_768
DEFAULT_EPS = 1e-5
THETA_OF_WINDOWS = 10_000.0
THETA = 1_000_000.0
"""The rotation's base, where the parameters omit it: models with a sliding window are the older ones."""


def translated(path: Path, params: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration. Raises CheckpointError for a missing or unknown parameter."""
    for key, value in params.items():
        if key not in READ and key not in NEUTRAL and value not in (None, False, {}, []):
            raise CheckpointError(
                f"{path}: has the parameter {key} ({value!r:.60}), which is not supported; known: {', '.join(sorted(READ))}. "
                "Use the model in Hugging Face's layout."
            )
    config: dict[str, Any] = {}
    for key, name in RENAMED.items():
        config[name] = _count(path, key, params.get(key))
    heads = config["num_attention_heads"]
    head_dim = params.get("head_dim") or config["hidden_size"] // heads
    length = params.get("max_seq_len") or params.get("max_position_embeddings") or DEFAULT_LENGTH
    config |= {
        "num_key_value_heads": _count(path, "n_kv_heads", params.get("n_kv_heads", heads)),
        "head_dim": _count(path, "head_dim", head_dim),
        "rms_norm_eps": params.get("norm_eps", DEFAULT_EPS),
        "hidden_act": "silu",
        "max_position_embeddings": _count(path, "max_seq_len", length),
        "tie_word_embeddings": bool(params.get("tied_embeddings", False)),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config |= _windows(path, params.get("sliding_window"), config["num_hidden_layers"])
    has_window = config["sliding_window"] is not None
    config["rope_theta"] = params.get("rope_theta") or (THETA_OF_WINDOWS if has_window else THETA)
    config |= quantization(path, params.get("quantization"))
    parameters = rotation(path, params.get("yarn"), params.get("llama_4_scaling"))
    if parameters:
        config["rope_parameters"] = {**parameters, "rope_theta": config.pop("rope_theta")}
    if is_latent(params):
        del config["head_dim"], config["sliding_window"]
        return config | latent(path, params, parameters)
    config |= _experts(path, params.get("moe"), has_kinds="layer_types" in config)
    if "llama_4_scaling_beta" in parameters:
        config |= _scaled_type(path, config)
    return config


def _scaled_type(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the type of models whose queries are scaled by position."""
    if config["model_type"] != "mistral" or config["sliding_window"] is not None:
        raise CheckpointError(
            f"{path}: has llama_4_scaling together with windows or experts, which is not supported; use the model in Hugging "
            "Face's layout."
        )
    return {"model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"]}


def _windows(path: Path, value: Any, num_layers: int) -> dict[str, Any]:
    """Return the window of all layers, or of each layer from a repeating list."""
    if not isinstance(value, list):
        return {"sliding_window": _count(path, "sliding_window", value) if value else None}
    sizes = {size for size in value if size}
    if len(sizes) != 1 or num_layers % len(value):
        raise CheckpointError(
            f"{path}: sliding_window is {value!r:.60}; expected one size, null for layers without a window, and a length that "
            f"divides {num_layers} layers."
        )
    kinds = ["sliding_attention" if size else "full_attention" for size in value]
    size = _count(path, "sliding_window", sizes.pop())
    return {"sliding_window": size, "layer_types": kinds * (num_layers // len(value))}


def _experts(path: Path, moe: Any, *, has_kinds: bool) -> dict[str, Any]:
    """Return the model type and the number of experts."""
    if not moe:
        model_type = "ministral" if has_kinds else "mistral"
        return {"model_type": model_type, "architectures": ["MistralForCausalLM"]}
    unknown = sorted(moe.keys() - OF_EXPERTS.keys()) if isinstance(moe, dict) else [str(moe)]
    if unknown or has_kinds:
        raise CheckpointError(
            f"{path}: moe is {moe!r:.100}; expected {' and '.join(OF_EXPERTS)} alone, and one window for all layers. Use the "
            "model in Hugging Face's layout."
        )
    found: dict[str, Any] = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    for key, name in OF_EXPERTS.items():
        found[name] = _count(path, f"moe.{key}", moe.get(key))
    return found


def _count(path: Path, key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{path}: {key} is {value!r:.60}, expected an integer from 1.")
    return value
