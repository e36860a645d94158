"""The measurements of `benchmarks.gpu`, each in a process of its own: `python -m benchmarks.gpu_rows NAME`.

Owns: what is measured, and how. Never does: print for people. Called by: `benchmarks.gpu`.

Prints one JSON object a figure: {"row", "value", "unit", "share", "goal", "of"}.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_ceilings import copy_rate, matmul_rate, seconds_of
from benchmarks.gpu_shapes import SHAPES, token_bytes, token_numbers, write

GOALS = {"Llama-3-8B": 0.85, "Qwen3-30B-A3B": 0.60, "gpt-oss-20b": None}
PROMPT = 128
TOKENS = 256


def figure(row: str, value: float, unit: str, share: float | None = None, goal: Any = None, of: str = "") -> None:
    """One line of the report. share: of the ceiling `of`."""
    told = {"row": row, "value": value, "unit": unit, "share": share, "goal": goal, "of": of}
    print(json.dumps(told), flush=True)


def engine(name: str, **more: Any) -> Any:
    """An engine on a GPU with invented weights."""
    from core import LLM

    folder = Path(tempfile.mkdtemp(prefix="core-gpu-"))
    arguments = {
        "model": str(write(name, folder)),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "device": "cuda:0",
        "enable_prefix_caching": False,
        "max_model_len": 8192 + TOKENS + 64,
        **more,
    }
    return LLM(**arguments)


def prompts(count: int, length: int, name: str) -> list[dict[str, list[int]]]:
    """Prompts that have nothing in common."""
    vocabulary = SHAPES[name]["vocab_size"]
    random = torch.Generator().manual_seed(count * 7919 + length)
    ids = torch.randint(10, vocabulary - 10, (count, length), generator=random)
    return [{"prompt_token_ids": row} for row in ids.tolist()]


def generate(llm: Any, asked: list[dict[str, list[int]]], tokens: int) -> float:
    """Seconds until all are answered."""
    from core import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    begin = time.perf_counter()
    llm.generate(asked, params, use_tqdm=False)
    return time.perf_counter() - begin


def decode_rate(llm: Any, name: str, count: int, length: int = PROMPT) -> float:
    """Steps a second of decoding alone: a long run less a short one."""
    asked = prompts(count, length, name)
    generate(llm, asked, 16)
    short = generate(llm, asked, 32)
    long = generate(llm, asked, 32 + TOKENS)
    return TOKENS / (long - short)


def decode(name: str) -> None:
    """One stream: bytes of weights a second, beside the copy rate."""
    ceiling = copy_rate()
    begin = time.perf_counter()
    llm = engine(name, max_num_seqs=8)
    started = time.perf_counter() - begin
    figure(f"{name}: start with invented weights", started, "s", goal="≤ 12 s" if name == "Llama-3-8B" else None)
    rate = decode_rate(llm, name, 1)
    share = rate * token_bytes(name) / ceiling
    figure(f"{name}: decode, 1 stream", rate, "tokens/s", share, GOALS[name], "bytes / copy rate")
    if name == "Llama-3-8B":
        graphs = llm._client.core.executor.worker.runtime._graphs
        figure("recorded graphs, seconds", graphs.seconds, "s", goal="≤ 3 s")
        figure("recorded graphs, memory", graphs.spent / 2**30, "GiB", goal="≤ 0.3 GiB")
    llm.close()


def prefill() -> None:
    """Prompts alone: operations a second, beside the rate of a product."""
    name = "Llama-3-8B"
    ceiling = matmul_rate()
    llm = engine(name, max_num_batched_tokens=16384)
    count, length = 16, 1024
    generate(llm, prompts(count, length, name), 1)
    seconds = generate(llm, prompts(count, length, name), 1)
    operations = 2 * token_numbers(name) * count * length
    figure(f"{name}: prefill, {count} x {length}", count * length / seconds, "tokens/s", operations / seconds / ceiling,
           0.70, "matmul rate")  # fmt: skip
    llm.close()


def gaps() -> None:
    """What a device does not do between steps, at 256 streams."""
    name = "Llama-3-8B"
    llm = engine(name, max_num_seqs=256, max_model_len=2048)
    asked = prompts(256, PROMPT, name)
    generate(llm, asked, 64)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        generate(llm, asked, 64)
    spans = sorted((event.time_range.start, event.time_range.end) for event in profile.events())
    half = spans[len(spans) // 2 :]  # by then every step only decodes
    busy, end = 0.0, half[0][0]
    for start, stop in half:
        busy += max(stop - max(start, end), 0)
        end = max(end, stop)
    idle = 1 - busy / (end - half[0][0])
    figure(f"{name}: idle between steps, 256 streams", 100 * idle, "%", goal="≤ 3 %")
    rate = decode_rate(llm, name, 256)
    figure(f"{name}: decode, 256 streams", 256 * rate, "tokens/s")
    llm.close()


def attention() -> None:
    """Decode attention of one layer at 64 x 8k: bytes of K and V a second, beside the copy rate."""
    from core.api.specs import AttentionSpec
    from core.plugin.hookspecs import LoadContext
    from core.plugin.registry import PluginRegistry
    from core.plugin.table import load_plugin
    from core_kit.oracles.reference import batch_view

    ceiling = copy_rate()
    spec = AttentionSpec(32, 8, 128, 128, 128**-0.5)
    block, count, length = 16, 64, 8192
    registry = PluginRegistry()
    for name in ("triton", "flash_attn", "flashinfer", "torch_sdpa"):
        try:
            backend = load_plugin(registry.get("attention", name), LoadContext(device="cuda:0", dtype="bfloat16"))
            size = backend.kv_layout(spec, block, "bfloat16").block_bytes
            blocks = count * length // block
            raw = torch.zeros(blocks + 1, size, dtype=torch.uint8, device="cuda")
            handle = backend.bind(spec, block, "bfloat16", raw)
            tables = [list(range(1 + i * length // block, 1 + (i + 1) * length // block)) for i in range(count)]
            view = on_device(batch_view([1] * count, [length] * count, tables, block))
            step = backend.build(view)
            q = torch.randn(count, 32, 128, dtype=torch.bfloat16, device="cuda")
            out = torch.empty_like(q)
            seconds = seconds_of(lambda b=backend, h=handle, x=q, s=step, o=out: b.forward(h, x, s, o))
        except Exception as error:  # one that is not installed says so; the others are measured
            print(f"attention {name}: {error}", file=sys.stderr)
            continue
        share = blocks * size / seconds / ceiling
        goal = 0.80 if name == "triton" else None
        figure(f"decode attention of {name}, 64 x 8k", 1e6 * seconds, "us", share, goal, "copy rate")


def on_device(view: Any) -> Any:
    """A step whose tensors are the device's."""
    for name in ("cu_seqlens_q", "seq_lens", "block_table", "slot_mapping", "positions"):
        setattr(view, name, getattr(view, name).cuda())
    return view


def throughput() -> None:
    """64 prompts at once, and the same with transformers' continuous batching."""
    name = "Llama-3-8B"
    count, length, tokens = 64, 512, 128
    llm = engine(name, max_num_seqs=count, max_model_len=2048)
    asked = prompts(count, length, name)
    generate(llm, asked, 8)
    ours = count * tokens / generate(llm, asked, tokens)
    figure(f"{name}: {count} requests of {length} + {tokens}", ours, "tokens/s")
    llm.close()
    del llm
    torch.cuda.empty_cache()
    theirs = transformers_rate(name, [one["prompt_token_ids"] for one in asked], tokens)
    figure("transformers' continuous batching, the same", theirs, "tokens/s")
    figure("times transformers", ours / theirs, "x", goal="≥ 3 x")


def transformers_rate(name: str, asked: list[list[int]], tokens: int) -> float:
    """Tokens a second of transformers, on the same shape."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(write(name, Path(tempfile.mkdtemp(prefix="core-gpu-"))))
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    asking = GenerationConfig(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, eos_token_id=-1)
    model.eval()
    model.generate_batch(asked[:2], generation_config=asking)
    begin = time.perf_counter()
    answers = model.generate_batch(asked, generation_config=asking)
    seconds = time.perf_counter() - begin
    made = sum(len(answer.generated_tokens) for answer in answers.values())
    return made / seconds


def ceilings() -> None:
    """What everything is held against."""
    figure("copy", copy_rate() / 1e12, "TB/s")
    figure("bfloat16 product", matmul_rate() / 1e12, "TFLOP/s")


ROWS: dict[str, Callable[[], None]] = {
    "ceilings": ceilings,
    "llama": lambda: decode("Llama-3-8B"),
    "qwen": lambda: decode("Qwen3-30B-A3B"),
    "gpt-oss": lambda: decode("gpt-oss-20b"),
    "attention": attention,
    "prefill": prefill,
    "gaps": gaps,
    "throughput": throughput,
}

if __name__ == "__main__":
    ROWS[sys.argv[1]]()
