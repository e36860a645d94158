"""Times one layer's attention and cache write, and the sampler, on the native kernels.

    python -m benchmarks.attention [--threads 2] [--seconds 0.3] [--isa amx,avx512_vnni_bf16]
        [--only decode,prefill,shared,types,gemma,llama,prompt,long,sampling]

With several instruction sets each case is timed with one after another. Prints the fastest of many calls in microseconds,
and for attention the bytes of cache that the batch's sequences see a second (a shared prefix counts once for each sequence
that sees it).
"""

from __future__ import annotations

import argparse
import itertools
import time

import numpy as np
import torch

from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.specs import AttentionSpec
from core_attention.cpu_paged.backend import CpuPagedAttention
from core_attention.cpu_paged.limits import ELEMENTS
from core_platforms.cpu.extension import check_isa, kernels_or_reason
from core_platforms.cpu.kernels import NativeKernels
from core_runtime.contracts import BatchView
from core_runtime.sampling import Sampler, SampleRows, SamplingColumns, SequenceSampling

SMALL = AttentionSpec(9, 3, 64, 64, 0.125)
LLAMA = AttentionSpec(32, 8, 128, 128, 128**-0.5)
GEMMA = AttentionSpec(4, 1, 256, 256, 0.0625, window=512)
BLOCK = 16
NEAR, FAR = 1 << 21, 160_000_000
VOCABULARY = 49152
SECTIONS = {  # spec, KV type, sequences, keys, new tokens, shared prefix
    "decode": [(SMALL, "bfloat16", n, keys, 1, 0) for n in (1, 16, 64) for keys in (128, 400, 1024)],
    "prefill": [(SMALL, dtype, 1, keys, keys, 0) for dtype in ("bfloat16", "float32") for keys in (128, 1024)],
    "shared": [(SMALL, "bfloat16", 32, 832, new, shared) for new in (1, 32) for shared in (0, 768)],
    "types": [(SMALL, dtype, n, 1000, 1, 0) for n in (1, 64) for dtype in ELEMENTS],
    "long": [
        (SMALL, dtype, 1, keys, new, 0)
        for keys in (8192, 32768)
        for dtype in ("bfloat16", "int8_per_token_head", "k8v4_per_token_head")
        for new in (1, 512)
    ],
    "llama": [(LLAMA, dtype, 1, 32768, 1, 0) for dtype in ("bfloat16", "int8_per_token_head", "k8v4_per_token_head")],
    "prompt": [
        (LLAMA, dtype, 1, keys, 512, 0) for keys in (1024, 8192, 32768) for dtype in ("bfloat16", "int8_per_token_head")
    ],
    "gemma": [(GEMMA, "bfloat16", n, 1024, new, 0) for n, new in ((1, 1), (16, 1), (1, 1024))],
}


def best(run, seconds):
    run()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def layers_beyond_caches(nbytes):
    """How many caches of `nbytes` are read in turn, so that a long one is read from memory as a model with many layers does."""
    return max(1, min(24, FAR // nbytes)) if nbytes > NEAR else 1


def time_attention(seconds, spec, dtype, count, keys, new, shared, label=""):
    """`count` sequences of `keys` keys, the last `new` of them this step's queries, the first `shared` in common."""
    backend, width = CpuPagedAttention(), keys // BLOCK + 1
    size = backend.kv_layout(spec, BLOCK, dtype).block_bytes
    raws = [
        torch.zeros(count * width, size, dtype=torch.uint8) for _ in range(layers_beyond_caches(count * width * size))
    ]
    table = torch.randperm(count * width).int().view(count, width)
    table[:, : shared // BLOCK] = table[0, : shared // BLOCK].clone()
    positions = torch.arange(keys - new, keys).repeat(count)
    sequences = torch.arange(count).repeat_interleave(new)
    slots = table[sequences, positions // BLOCK].long() * BLOCK + positions % BLOCK
    view = BatchView(
        num_tokens=count * new, num_seqs=count, block_size=BLOCK, max_query_len=new, max_seq_len=keys,
        query_lens=[new] * count, seq_lens_list=[keys] * count, cu_seqlens_q=torch.arange(count + 1).int() * new,
        seq_lens=torch.full((count,), keys).int(), block_table=table, slot_mapping=slots, positions=positions,
    )  # fmt: skip
    layers = [backend.bind(spec, BLOCK, dtype, raw) for raw in raws]
    metadata = backend.build(view)
    q = torch.randn(count * new, spec.num_heads, spec.head_size)
    out = torch.empty(count * new, spec.num_heads, spec.head_size_v)
    k = torch.randn(count * new, spec.num_kv_heads, spec.head_size)
    places = itertools.cycle(layers)
    write = best(lambda: backend.write(next(places), k, k, metadata), seconds)
    forward = best(lambda: backend.forward(next(places), q, metadata, out), seconds)
    products = 4 * new * count * (keys - new / 2) * spec.num_heads * spec.head_size
    print(
        f"  {label}{dtype:20} {count:3} x {keys:5} keys ({shared:3} shared), {new:4} new: {forward * 1e6:9.1f} us, "
        f"{raws[0].numel() / forward / 1e9:6.1f} GB/s, {products / forward / 1e9:5.0f} GFLOP/s; write {write * 1e6:7.1f} us",
        flush=True,
    )


def time_sampling(seconds, kernels):
    """A step of whole `Sampler` calls: what requests ask for, with and without the kernels."""
    asked = {
        "greedy": {"temperature": 0.0},
        "plain": {"temperature": 1.0},
        "top-k 50, top-p 0.95": {"temperature": 1.0, "top_k": 50, "top_p": 0.95},
        "top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
        "plain, 5 logprobs": {"temperature": 1.0, "logprobs": 5},
    }
    native, plain = Sampler(VOCABULARY, kernels.race, kernels.logprobs), Sampler(VOCABULARY)
    for name, params in asked.items():
        for count in (1, 16, 64):
            logits, columns = torch.randn(count, VOCABULARY) * 3, SamplingColumns(count)
            for i in range(count):
                request = EngineRequest(
                    request_id=str(i), choice=0, prompt_token_ids=[1], params=SamplingParams(**params), seed=i
                )
                columns.start(i, SequenceSampling(request, np.ones(1, np.int32)))
            rows = SampleRows(columns, np.zeros(count, np.int64))
            rows.bind(np.arange(count), np.zeros(count, np.int64))
            ours = best(lambda logits=logits, rows=rows: native.sample(logits, rows), seconds)
            numpy = best(lambda logits=logits, rows=rows: plain.sample(logits, rows), seconds)
            print(f"  {name:22} {count:3} rows: {ours * 1e6:9.1f} us, numpy {numpy * 1e6:9.1f} us", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", default=",".join([*SECTIONS, "sampling"]))
    parser.add_argument("--isa", default="", help="instruction sets, with commas; unset: the best one here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kernels = NativeKernels(args.threads)
    native = kernels_or_reason()
    names = args.isa.split(",") if args.isa else [native.isa()]
    for name in names:
        check_isa(native, name)
    print(kernels.numerics, f"{args.threads} threads")
    for section in args.only.split(","):
        print(section)
        for case, name in itertools.product(SECTIONS.get(section, ()), names):
            native.set_isa(name)
            time_attention(args.seconds, *case, label=f"{name} " if len(names) > 1 else "")
        if section == "sampling":
            time_sampling(args.seconds, kernels)


if __name__ == "__main__":
    main()
