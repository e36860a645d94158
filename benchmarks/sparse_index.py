"""Steps of one layer of latent attention with an index beside one without, at the widths of published models.

    python -m benchmarks.sparse_index [--tokens 8192] [--batch 1 4] [--queries 1] [--repeats 9] [--threads 2] [--clock wall]

Each figure is a layer's step behind `--tokens` tokens, without its projections: with an index its keys are scored, the best
2,048 chosen and read; without one all are read. `--queries` 1 is a step of decode; more are the last part of a prompt. Both
are computed in turns, and the median of the ratios is shown. Numbers of the cache are bfloat16, and random. `by products` is
how many times fewer numbers are multiplied with the index: the limit where both sides multiply equally fast, and choosing and
copying keys takes no time. With `--threads 1 --clock process` seconds are those of a processor, which other work on a busy
machine does not take.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from core.api.specs import IndexSpec, LatentSpec
from core_attention.cpu_paged.backend import CpuPagedAttention
from core_attention.cpu_paged.latent import LatentLayer
from core_platforms.cpu.kernels import NativeKernels
from core_runtime.contracts import BatchView

BLOCK = 64
CLOCKS = {"wall": time.perf_counter, "process": time.process_time}
LAYERS = {
    "DeepSeek V3.2": LatentSpec(128, 512, 64, 128, 128, 192**-0.5, 1536, IndexSpec(64, 128, 2048)),
    "A.X K2 Light": LatentSpec(32, 128, 32, 64, 64, 96**-0.5, 384, IndexSpec(16, 128, 2048)),
    "GLM-5": LatentSpec(64, 512, 64, 192, 256, 256**-0.5, 2048, IndexSpec(32, 128, 2048)),
}


def view_of(batch: int, tokens: int, queries: int) -> BatchView:
    """A step of the last tokens of each of some sequences of that length."""
    blocks = -(-tokens // BLOCK)
    table = torch.randperm(batch * blocks).int().view(batch, blocks)
    positions = torch.arange(tokens - queries, tokens)
    slots = table[:, positions // BLOCK].long() * BLOCK + positions % BLOCK
    return BatchView(
        num_tokens=batch * queries, num_seqs=batch, block_size=BLOCK, max_query_len=queries, max_seq_len=tokens,
        query_lens=[queries] * batch, seq_lens_list=[tokens] * batch,
        cu_seqlens_q=torch.arange(0, batch * queries + 1, queries).int(),
        seq_lens=torch.full((batch,), tokens).int(), block_table=table, slot_mapping=slots.flatten(),
        positions=positions.repeat(batch),
    )  # fmt: skip


def steps_of(
    spec: LatentSpec, batch: int, tokens: int, queries: int = 1
) -> tuple[Callable[[], None], Callable[[], None]]:
    """The step with the index, and the same without."""
    backend = CpuPagedAttention()
    index = spec.index
    assert index is not None
    size = backend.kv_layout(spec, BLOCK, "bfloat16").block_bytes
    view, rows = view_of(batch, tokens, queries), batch * queries
    numbers = torch.randn(batch * view.block_table.shape[1], size // 2, dtype=torch.bfloat16)
    layer = backend.bind(spec, BLOCK, "bfloat16", numbers.view(torch.uint8))
    assert isinstance(layer, LatentLayer)
    metadata = backend.build(view)
    q, q_pe = torch.randn(rows, spec.num_heads, spec.rank), torch.randn(rows, spec.num_heads, spec.rope_size)
    queries, weights = torch.randn(rows, index.num_heads, index.head_size), torch.randn(rows, index.num_heads)
    chosen = torch.empty(rows, index.top_k, dtype=torch.int32)
    out = torch.empty_like(q)

    def sparse() -> None:
        backend.choose(layer, queries, weights, metadata, chosen)
        backend.forward_chosen(layer, q, q_pe, chosen, metadata, out)

    def dense() -> None:
        backend.forward_latent(layer, q, q_pe, metadata, out)

    return sparse, dense


def by_products(spec: LatentSpec, tokens: int) -> float:
    """How many times fewer numbers a row multiplies with the index, beyond as many tokens as it chooses."""
    index = spec.index
    assert index is not None
    of_key, of_index = spec.num_heads * (2 * spec.rank + spec.rope_size), index.num_heads * index.head_size
    return tokens * of_key / (tokens * of_index + min(tokens, index.top_k) * of_key)


def milliseconds(step: Callable[[], None], clock: Callable[[], float]) -> float:
    """The time of one call."""
    start = clock()
    step()
    return 1000 * (clock() - start)


def measure(
    spec: LatentSpec,
    batch: int,
    tokens: int,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
    queries: int = 1,
) -> tuple[float, float, float]:
    """Medians: milliseconds with the index and without, and how many times faster the index is."""
    sparse, dense = steps_of(spec, batch, tokens, queries)
    sparse(), dense()
    pairs = [(milliseconds(sparse, clock), milliseconds(dense, clock)) for _ in range(repeats)]
    both = zip(*pairs, strict=True)
    with_index, without = (statistics.median(times) for times in both)
    return with_index, without, statistics.median(slow / fast for fast, slow in pairs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--queries", type=int, default=1, help="new tokens of each sequence")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=list(LAYERS))
    given = parser.parse_args(arguments)
    kernels = NativeKernels(given.threads)
    print(
        f"{kernels.num_threads} threads, {given.queries} queries of each sequence, seconds by the clock `{given.clock}`\n"
    )
    print("| layer | tokens | sequences | with the index, ms | without, ms | times faster | by products |")
    print("|---|---|---|---|---|---|---|")
    for name in given.layers:
        spec = LAYERS[name]
        for tokens in given.tokens:
            for batch in given.batch:
                fast, slow, ratio = measure(spec, batch, tokens, given.repeats, CLOCKS[given.clock], given.queries)
                limit = by_products(spec, tokens)
                print(
                    f"| {name} | {tokens:,} | {batch} | {fast:.2f} | {slow:.2f} | {ratio:.2f} | {limit:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
