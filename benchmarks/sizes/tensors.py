"""The tensors of a model's GGUF file: names, shapes, and what each is for.

Owns: the lists. Never does: choose a type, or draw a number. Called by: `files`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Use = Literal["matrix", "value", "down", "attention", "embedding", "head", "experts", "experts down", "norm", "float"]
"""What decides a tensor's type. `norm` and `float` stay float32: ones, and small numbers."""
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: its name in the file, its shape with inputs last, and what it is for."""

    name: str
    shape: tuple[int, ...]
    use: Use


def tensors(config: Config) -> Iterator[Tensor]:
    """Yield all tensors of a model, layer by layer."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    tied = config["tie_word_embeddings"]
    yield Tensor("token_embd.weight", (vocabulary, hidden), "head" if tied else "embedding")
    for layer in range(config["num_hidden_layers"]):
        for tensor in _layer(config, layer):
            yield Tensor(f"blk.{layer}.{tensor.name}", tensor.shape, tensor.use)
    yield Tensor("output_norm.weight", (hidden,), "norm")
    if not tied:
        yield Tensor("output.weight", (vocabulary, hidden), "head")


def _layer(config: Config, layer: int) -> Iterator[Tensor]:
    hidden, kind = config["hidden_size"], config["model_type"]
    yield Tensor("attn_norm.weight", (hidden,), "norm")
    yield from _latent(config) if kind == "deepseek_v2" else _attention(config)
    if kind == "gemma3_text":
        yield Tensor("post_attention_norm.weight", (hidden,), "norm")
        yield Tensor("post_ffw_norm.weight", (hidden,), "norm")
    second = "post_attention_norm" if kind == "gpt_oss" else "ffn_norm"
    yield Tensor(f"{second}.weight", (hidden,), "norm")
    experts = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts") or 0
    if experts and layer >= config.get("first_k_dense_replace", 0):
        yield from _experts(config, experts)
    else:
        yield from _mlp("", hidden, config["intermediate_size"])


def _attention(config: Config) -> Iterator[Tensor]:
    hidden, size = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    yield Tensor("attn_q.weight", (queries, hidden), "attention")
    yield Tensor("attn_k.weight", (keys, hidden), "attention")
    yield Tensor("attn_v.weight", (keys, hidden), "value")
    yield Tensor("attn_output.weight", (hidden, queries), "attention")
    if config["model_type"] in ("gemma3_text", "qwen3_moe"):
        yield Tensor("attn_q_norm.weight", (size,), "norm")
        yield Tensor("attn_k_norm.weight", (size,), "norm")
    if config.get("attention_bias"):
        widths = {"attn_q": queries, "attn_k": keys, "attn_v": keys, "attn_output": hidden}
        for name, width in widths.items():
            yield Tensor(f"{name}.bias", (width,), "float")
        yield Tensor("attn_sinks.weight", (config["num_attention_heads"],), "float")


def _latent(config: Config) -> Iterator[Tensor]:
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    plain, rotated, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    yield Tensor("attn_q.weight", (heads * (plain + rotated), hidden), "attention")
    yield Tensor("attn_kv_a_mqa.weight", (rank + rotated, hidden), "attention")
    yield Tensor("attn_kv_a_norm.weight", (rank,), "norm")
    yield Tensor("attn_k_b.weight", (heads, rank, plain), "attention")
    yield Tensor("attn_v_b.weight", (heads, value, rank), "attention")
    yield Tensor("attn_output.weight", (hidden, heads * value), "attention")


def _mlp(suffix: str, hidden: int, inner: int) -> Iterator[Tensor]:
    yield Tensor(f"ffn_gate{suffix}.weight", (inner, hidden), "matrix")
    yield Tensor(f"ffn_up{suffix}.weight", (inner, hidden), "matrix")
    yield Tensor(f"ffn_down{suffix}.weight", (hidden, inner), "down")


def _experts(config: Config, experts: int) -> Iterator[Tensor]:
    hidden = config["hidden_size"]
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    yield Tensor("ffn_gate_inp.weight", (experts, hidden), "float")
    yield Tensor("ffn_gate_exps.weight", (experts, inner, hidden), "experts")
    yield Tensor("ffn_up_exps.weight", (experts, inner, hidden), "experts")
    yield Tensor("ffn_down_exps.weight", (experts, hidden, inner), "experts down")
    if config["model_type"] == "gpt_oss":
        yield Tensor("ffn_gate_inp.bias", (experts,), "float")
        for name, width in {"gate": inner, "up": inner, "down": hidden}.items():
            yield Tensor(f"ffn_{name}_exps.bias", (experts, width), "float")
    if shared := config.get("n_shared_experts", 0):
        yield from _mlp("_shexp", hidden, shared * inner)
