"""Inputs rounded to the 8-bit floats that a checkpoint declares: processor seconds beside inputs that are kept.

    python -m benchmarks.declared_inputs [--layers 4] [--rounds 5] [--prompt 512] [--tokens 48]

Made-up models with 8-bit weights in blocks of 128 by 128: a llama, and a mixtral of eight experts, two for a token. Each is
opened three times: with `--quantization-config.activation declared`; the same with kernels that leave the rounding to torch,
in front of them; and without the argument. The three compute in turns; the median of each over the rounds is shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch import Tensor

from core.api.sampling_params import SamplingParams
from core_frontend.llm import LLM
from core_platforms.cpu.native_linear import NativeLinear

BLOCK = 128
VOCABULARY = 1024
HIDDEN = 1024
HEADS = 16
KV_HEADS = 4
HEAD_SIZE = HIDDEN // HEADS
EXPERTS = 8
INNER = {"llama": 2816, "mixtral": 1408}
DECLARED = {"quantization_config": {"activation": "declared"}}
WAYS = ("kept", "declared, rounded by torch", "declared")


def matrices(kind: str) -> Iterator[tuple[str, int, int]]:
    """The packed matrices of a layer: name, outputs, inputs."""
    inner = INNER[kind]
    for name, rows in (("q", HIDDEN), ("k", KV_HEADS * HEAD_SIZE), ("v", KV_HEADS * HEAD_SIZE), ("o", HIDDEN)):
        yield f"self_attn.{name}_proj", rows, HIDDEN
    if kind == "llama":
        yield from (("mlp.gate_proj", inner, HIDDEN), ("mlp.up_proj", inner, HIDDEN), ("mlp.down_proj", HIDDEN, inner))
        return
    for expert in range(EXPERTS):
        for name, rows, inputs in (("w1", inner, HIDDEN), ("w3", inner, HIDDEN), ("w2", HIDDEN, inner)):
            yield f"block_sparse_moe.experts.{expert}.{name}", rows, inputs


def write_model(kind: str, layers: int, folder: Path) -> Path:
    """A checkpoint with random numbers."""
    torch.manual_seed(0)
    tensors: dict[str, Tensor] = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN).bfloat16(),
        "model.norm.weight": torch.ones(HIDDEN).bfloat16(),
        "lm_head.weight": torch.randn(VOCABULARY, HIDDEN).bfloat16() / 32,
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, rows, inputs in matrices(kind):
            tensors[f"{prefix}{name}.weight"] = torch.randn(rows, inputs).to(torch.float8_e4m3fn)
            scale = torch.full((-(-rows // BLOCK), -(-inputs // BLOCK)), inputs**-0.5)
            tensors[f"{prefix}{name}.weight_scale_inv"] = scale
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{norm}.weight"] = torch.ones(HIDDEN).bfloat16()
        if kind == "mixtral":
            tensors[f"{prefix}block_sparse_moe.gate.weight"] = torch.randn(EXPERTS, HIDDEN).bfloat16()
    quantized = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    config = {
        "model_type": kind, "architectures": [f"{kind.capitalize()}ForCausalLM"], "hidden_size": HIDDEN,
        "intermediate_size": INNER[kind], "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False, "quantization_config": quantized,
    }  # fmt: skip
    if kind == "mixtral":
        config |= {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}
    path = folder / kind
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


@contextmanager
def opened(path: Path, way: str) -> Iterator[LLM]:
    """The model, computed in one of the WAYS."""
    settings: dict[str, Any] = {} if way == "kept" else DECLARED
    room: dict[str, Any] = {
        "max_model_len": 1024,
        "kv_cache_memory_bytes": 64 << 20,
        "enable_prefix_caching": False,
        "device": "cpu",
    }
    with ExitStack() as stack:
        if way == "declared, rounded by torch":
            stack.enter_context(patch.object(NativeLinear, "round_inputs", lambda kernel, step: False))
        llm = LLM(model=str(path), use_tqdm_on_load=False, **room, **settings)
        stack.close()
        with llm:
            yield llm


def seconds(llm: LLM, prompt: int, tokens: int) -> float:
    """Processor seconds of one request."""
    ids = torch.randint(10, VOCABULARY, (prompt,)).tolist()
    asked = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
    start = time.process_time()
    llm.generate([{"prompt_token_ids": ids}], asked, use_tqdm=False)
    return time.process_time() - start


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args(arguments)
    print("| model | inputs | a token, ms | a prompt's token, ms |\n|---|---|---|---|")
    for kind in INNER:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            path = write_model(kind, given.layers, Path(folder))
            models = {way: stack.enter_context(opened(path, way)) for way in WAYS}
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for number in range(given.rounds + 1):
                for way, llm in models.items():
                    pair = (seconds(llm, 8, given.tokens) / given.tokens, seconds(llm, given.prompt, 1) / given.prompt)
                    if number:  # the first round touches the memory
                        found[way].append(pair)
            for way, pairs in found.items():
                one, many = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
                print(f"| {kind} | {way} | {one:.2f} | {many:.3f} |", flush=True)


if __name__ == "__main__":
    main()
