"""S1 and S2 of one model in several GGUF formats, beside llama-bench of llama.cpp and of ik_llama.cpp on the same files.

    python -m benchmarks.gguf_formats --quantize llama-quantize --llama-bench llama-bench ik_llama.cpp=PATH [--repeats 3]

The model is a llama of about 1B with random weights, whose widths are multiples of 256, so that every matrix takes the
format that it is asked to. Files are made once in --folder. Writes a table; with --out its figures are a part of
a JSON file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.formats import put

FORMATS = ("Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS")
HIDDEN = 2048
INNER = 8192
LAYERS = 16
HEADS = 32
KV_HEADS = 8
VOCABULARY = 32768
HEAD_SIZE = HIDDEN // HEADS


def write_model(path: Path) -> None:
    """The model in float16."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    add_tokenizer(writer, VOCABULARY)
    draw = np.random.default_rng(0)

    def matrix(name: str, rows: int, inputs: int) -> None:
        values = draw.standard_normal((rows, inputs), dtype=np.float32) * 0.02
        writer.add_tensor(name, values.astype(np.float16))

    matrix("token_embd.weight", VOCABULARY, HIDDEN)
    matrix("output.weight", VOCABULARY, HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, dtype=np.float32))
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        matrix(f"{block}attn_q.weight", HIDDEN, HIDDEN)
        matrix(f"{block}attn_k.weight", KV_HEADS * HEAD_SIZE, HIDDEN)
        matrix(f"{block}attn_v.weight", KV_HEADS * HEAD_SIZE, HIDDEN)
        matrix(f"{block}attn_output.weight", HIDDEN, HIDDEN)
        matrix(f"{block}ffn_gate.weight", INNER, HIDDEN)
        matrix(f"{block}ffn_up.weight", INNER, HIDDEN)
        matrix(f"{block}ffn_down.weight", HIDDEN, INNER)
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}{norm}.weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: Any, vocabulary: int) -> None:
    """One token a byte, one of two bytes, and tokens that no text has."""
    from tokenizers import pre_tokenizers

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    tokens += [f"<unused{index}>" for index in range(vocabulary - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * vocabulary)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(vocabulary - 1)
    writer.add_bos_token_id(vocabulary - 2)


def files(folder: Path, quantize: str) -> dict[str, Path]:
    """The model in every format, made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / "model-F16.gguf"
    found = {}
    for form in FORMATS:
        path = folder / f"model-{form}.gguf"
        found[form] = path
        if path.exists():
            continue
        if not plain.exists():
            write_model(plain)
        part = path.with_suffix(".part")
        subprocess.run([quantize, str(plain), str(part), form], check=True, stdout=subprocess.DEVNULL)
        part.rename(path)
    return found


def measure(path: Path, peers: list[str], repeats: int) -> dict[str, Any]:
    """Ours and the peers' in turns, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.offline", "--model", str(path), "--scenarios", "s1", "s2"]
    command += ["--repeats", str(repeats), "--no-prefix-caching", "--llama-bench", *peers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Make, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "core" / "benchmark_formats")
    parser.add_argument("--quantize", default="llama-quantize")
    parser.add_argument("--llama-bench", nargs="*", default=["llama-bench"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=FORMATS, default=FORMATS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table = Table("format", "GB", "decode tok/s", "prefill tok/s", "beside", title="S1 and S2")
    results = {}
    for form, path in files(given.folder, given.quantize).items():
        if form not in given.only:
            continue
        found = measure(path, given.llama_bench, given.repeats)
        results[form] = found
        size = os.path.getsize(path) / 1e9
        own = found["s1"]["decode tok/s"], found["s2"]["prompt tok/s"]
        table.add_row(form, f"{size:.2f}", f"{own[0]:.1f}", f"{own[1]:.0f}", "core")
        for name in found:
            scenario, _, peer = name.partition(" ")
            if scenario != "s1" or not peer:
                continue
            decode = found[name]["decode tok/s"]
            prefill = found[f"s2 {peer}"]["prompt tok/s"]
            beside = f"{peer}: {own[0] / decode:.2f}x, {own[1] / prefill:.2f}x"
            table.add_row("", "", f"{decode:.1f}", f"{prefill:.0f}", beside)
    Console(width=100).print(table)
    if given.out:
        put(given.out, "gguf_formats", results)


if __name__ == "__main__":
    main()
