"""Models of S9: true shapes, random weights, and room for 64k tokens.

Owns: their configurations and files. Never does: start a server. Called by: the command.

The safetensors are for `core` and vLLM, the GGUF files for llama.cpp. Weights of the two are different random numbers; no
output is compared. Of Qwen3.5 the GGUF file has llama.cpp's own tensors, which no module of `core` reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.sizes.files import write_gguf, write_safetensors
from benchmarks.sizes.models import GEMMA3_4B, QWEN35_08B, every
from benchmarks.sizes.qwen35 import write_qwen35

POSITIONS = {"max_position_embeddings": 65536}
SHORT_VOCABULARY = 32768
SMOLLM2_135M = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
GEMMA3_270M = GEMMA3_4B | {
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "vocab_size": 262144,
    "sliding_window": 512,
    "layer_types": every(6, 18, "sliding_attention"),
}
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "dense": (SMOLLM2_135M | POSITIONS, "llama"),
    "window": (GEMMA3_270M | POSITIONS, "gemma3"),
    "gdn": (QWEN35_08B | POSITIONS, "qwen35"),
}
"""{name: (configuration, architecture in GGUF files)}: SmolLM2 135M, Gemma 3 270M and Qwen3.5 0.8B."""


def kv_gigabytes(name: str, tokens: float) -> float:
    """Return the GB of keys and values, in bfloat16, of so many tokens of a model, without states of fixed size."""
    config, _ = MODELS[name]
    layers = config.get("layer_types", ["full_attention"] * config["num_hidden_layers"])
    lengths = {"full_attention": tokens, "sliding_attention": min(tokens, config.get("sliding_window", tokens))}
    row = 2 * 2 * config["num_key_value_heads"] * config["head_dim"]
    return row * sum(lengths.get(kind, 0.0) for kind in layers) / 1e9


def short_path(name: str, layers: int, folder: Path) -> Path:
    """Return a directory with the first layers of a model and a smaller vocabulary, for steps that end sooner."""
    config, _ = MODELS[name]
    shorter = {"num_hidden_layers": layers, "vocab_size": SHORT_VOCABULARY}
    if "layer_types" in config:
        shorter["layer_types"] = config["layer_types"][:layers]
    path = folder / f"short-{name}-{layers}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        write_safetensors(part, config | shorter)
        part.rename(path)
    return path


def path_of(name: str, form: str, folder: Path) -> Path:
    """Return a model's safetensors directory or GGUF file; write it first where it is missing."""
    config, architecture = MODELS[name]
    path = folder / f"agents-{name}{'.gguf' if form == 'gguf' else ''}"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    if form != "gguf":
        write_safetensors(part, config)
    elif architecture == "qwen35":
        write_qwen35(part, config)
    else:
        write_gguf(part, architecture, config, "gguf-bf16")
    part.rename(path)
    return path
