"""Small GGUF files, written by the `gguf` package."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

HIDDEN, INTER, LAYERS, HEADS, KV_HEADS, VOCAB = 64, 96, 2, 4, 2, 262
SPECIALS = ["<unk>", "<s>", "</s>", "<end_of_turn>"]


def printable() -> list[str]:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in plain] + [chr(0x100 + i) for i in range(256 - len(plain))]


def write_gguf(
    path: Path,
    arch: str = "llama",
    quant: GGMLQuantizationType = GGMLQuantizationType.Q8_0,
    metadata: dict[str, object] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
    tokenizer: bool = True,
) -> Path:
    """A model of two layers. metadata: overrides (None removes a key). tensors: overrides by GGUF name (None removes)."""
    rng = np.random.default_rng(1)
    head_dim = 16 if arch == "llama" else 32
    writer = GGUFWriter(str(path), arch)
    values: dict[str, object] = {
        f"{arch}.block_count": LAYERS,
        f"{arch}.context_length": 128,
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.feed_forward_length": INTER,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 50000.0,
    }
    if arch == "llama":
        values |= {"llama.rope.dimension_count": head_dim, "llama.vocab_size": VOCAB}
    else:
        values |= {f"{arch}.attention.key_length": head_dim, f"{arch}.attention.value_length": head_dim}
        values |= {f"{arch}.attention.sliding_window": 24}
    for key, value in (values | (metadata or {})).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
    if tokenizer:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list([*SPECIALS, *printable(), "he", "ll"])
        writer.add_token_types([3] * 4 + [1] * 258)
        writer.add_token_merges(["h e", "l l"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    for name, shape in shapes(arch, head_dim).items():
        given = (tensors or {}).get(name, rng.standard_normal(shape).astype(np.float32))
        if given is None:
            continue
        if given.ndim == 2:
            writer.add_tensor(name, quantize(given, quant), raw_dtype=quant)
        else:
            writer.add_tensor(name, given)
    for name, given in (tensors or {}).items():
        if given is not None and name not in shapes(arch, head_dim):
            writer.add_tensor(name, given)
    finish(writer)
    return path


def shapes(arch: str, head_dim: int) -> dict[str, tuple[int, ...]]:
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HEADS * head_dim, HIDDEN),
        "attn_k": (KV_HEADS * head_dim, HIDDEN),
        "attn_v": (KV_HEADS * head_dim, HIDDEN),
        "attn_output": (HIDDEN, HEADS * head_dim),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (INTER, HIDDEN),
        "ffn_up": (INTER, HIDDEN),
        "ffn_down": (HIDDEN, INTER),
    }
    if arch == "gemma3":
        layer |= {"attn_q_norm": (head_dim,), "attn_k_norm": (head_dim,)}
        layer |= {"post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,)}
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for index in range(LAYERS):
        found |= {f"blk.{index}.{name}.weight": shape for name, shape in layer.items()}
    return found


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
