"""The index of latent layers, native and in plain torch: the best keys, the order of equal ones, and bits that nothing changes.

Scores are small integers, so that both backends and the expectation compute them exactly, and many of them are equal.
"""

import math

import pytest
import torch
from attention.stored import stored

from core.api.specs import AttentionQuery, IndexSpec, LatentSpec
from core_attention.cpu_paged.backend import CpuPagedAttention
from core_attention.cpu_paged.limits import unsupported
from core_attention.torch_sdpa.backend import TorchSDPA
from core_runtime.contracts import AttentionParams, BatchView, ChoosesKeys

BACKENDS = {"native": CpuPagedAttention, "torch": TorchSDPA, "torch, by query": lambda: TorchSDPA(by_query=True)}
TOP_K = 20


def spec_of(top_k=TOP_K, heads=6, size=16, reuses=False):
    return LatentSpec(5, 32, 8, 16, 16, 0.2, 24, IndexSpec(heads, size, top_k, reuses))


class Indexed:
    """Sequences with a latent, a rotated key and a key of an index for each token, and what queries them."""

    def __init__(self, backend, lengths, block_size=16, dtype="float32", spec=None, exact=True, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.spec = spec or spec_of()
        self.index = self.spec.index
        self.backend = BACKENDS[backend]()
        assert isinstance(self.backend, ChoosesKeys)
        self.lengths, self.block_size, self.dtype = lengths, block_size, dtype

        def draw(*shape):
            return [torch.randn(length, *shape, generator=generator) for length in lengths]

        self.c, self.k_pe = draw(self.spec.rank), draw(self.spec.rope_size)
        self.q, self.q_pe = draw(5, self.spec.rank), draw(5, self.spec.rope_size)
        self.keys, self.queries = draw(self.index.head_size), draw(self.index.num_heads, self.index.head_size)
        self.weights = draw(self.index.num_heads)
        if exact:
            for parts in (self.keys, self.queries, self.weights):
                parts[:] = [part.mul(0.8).round() for part in parts]
        blocks = [math.ceil(length / block_size) for length in lengths]
        order = torch.randperm(sum(blocks) + 3, generator=generator).int()
        self.table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
        for i, count in enumerate(blocks):
            self.table[i, :count], order = order[:count], order[count:]
        size = self.backend.kv_layout(self.spec, block_size, dtype).block_bytes
        self.raw = torch.full((sum(blocks) + 3, size), 255, dtype=torch.uint8)  # every element is NaN
        self.scale = 0.25 if dtype.startswith("fp8") else 1.0
        self.layer = self.backend.bind(self.spec, block_size, dtype, self.raw, AttentionParams(self.scale, self.scale))
        self.done = [0] * len(lengths)

    def view(self, which, counts, tails=None):
        """The step that computes the next counts[i] tokens of each sequence."""
        positions = [torch.arange(self.done[i] - counts[i], self.done[i]) for i in which]
        blocks = [self.table[i, p // self.block_size].long() for i, p in zip(which, positions, strict=True)]
        slots = [b * self.block_size + p % self.block_size for b, p in zip(blocks, positions, strict=True)]
        lens = [counts[i] for i in which]
        ends = [self.done[i] for i in which]
        return BatchView(
            num_tokens=sum(lens), num_seqs=len(which), block_size=self.block_size, max_query_len=max(lens),
            max_seq_len=max(ends), query_lens=lens, seq_lens_list=ends,
            cu_seqlens_q=torch.tensor([0, *lens]).cumsum(0).int(), seq_lens=torch.tensor(ends).int(),
            block_table=self.table[which].contiguous(), slot_mapping=torch.cat(slots), positions=torch.cat(positions),
            tails=tails,
        )  # fmt: skip

    def write(self, counts):
        """Store the next counts[i] tokens of each sequence; the step, and its rows of some parts."""
        which = [i for i, count in enumerate(counts) if count]
        for i in which:
            self.done[i] += counts[i]
        metadata = self.backend.build(self.view(which, counts))

        def rows(parts):
            return torch.cat([parts[i][self.done[i] - counts[i] : self.done[i]] for i in which])

        self.backend.write_latent(self.layer, rows(self.c), rows(self.k_pe), metadata)
        self.backend.write_index(self.layer, rows(self.keys), metadata)
        return metadata, rows

    def step(self, counts):
        """The chosen keys and the outputs of each sequence's next tokens."""
        metadata, rows = self.write(counts)
        chosen, out = self.attend(metadata, rows)
        lens = [count for count in counts if count]
        which = [i for i, count in enumerate(counts) if count]
        return dict(zip(which, zip(chosen.split(lens), out.split(lens), strict=True), strict=True))

    def attend(self, metadata, rows):
        q, q_pe = rows(self.q), rows(self.q_pe)
        chosen = torch.full((len(q), self.index.top_k), -7, dtype=torch.int32)
        self.backend.choose(self.layer, rows(self.queries), rows(self.weights), metadata, chosen)
        out = torch.full(q.shape, torch.nan)
        self.backend.forward_chosen(self.layer, q, q_pe, chosen, metadata, out)
        return chosen, out

    def best(self, i, position):
        """The keys that a query must read: the best ones in float64, of equal ones the earlier."""
        keys = self.keys[i][: position + 1].double()
        products = (keys @ self.queries[i][position].double().T) / math.sqrt(self.index.head_size)
        scores = (products.relu() * self.weights[i][position].double()).sum(-1)
        return scores.argsort(descending=True, stable=True)[: self.index.top_k].sort().values

    def expected(self, i, position):
        """Attention of a query over these keys, in float64."""
        keys = self.best(i, position)
        c = stored(self.c[i], self.dtype, self.scale)[keys].double()
        k_pe = stored(self.k_pe[i], self.dtype, self.scale)[keys].double()
        scores = self.q[i][position].double() @ c.T + self.q_pe[i][position].double() @ k_pe.T
        return (scores * self.spec.scale).softmax(-1) @ c


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "fp8_e4m3"])
def test_the_best_keys_are_read_and_of_equal_ones_the_earlier(kernels, isa, backend, dtype):
    sequences = Indexed(backend, [90, 1, 33], 16, dtype)
    rounds = backend == "native" and (isa == "amx" or isa.endswith("bf16")) and dtype != "float32"
    for counts in ([70, 1, 0], [1, 0, 32], [19, 0, 1]):
        for i, (chosen, out) in sequences.step(counts).items():
            for row in range(counts[i]):
                position = sequences.done[i] - counts[i] + row
                if max(sequences.done) > TOP_K:
                    assert [int(key) for key in chosen[row] if key >= 0] == sequences.best(i, position).tolist()
                error = (out[row].double() - sequences.expected(i, position)).abs().max()
                assert error < (0.04 if rounds else 1e-5)


def test_bits_do_not_depend_on_chunks_blocks_neighbours_or_threads(native, kernels, isa):
    want = None
    for block_size, threads, chunk in ((16, 1, 1000), (16, 2, 37), (16, 1, 1), (1, 2, 1000), (48, 1, 90), (37, 2, 61)):
        native.pool_init(threads)
        sequences = Indexed("native", [300, 70], block_size, "bfloat16", exact=False)
        parts = []
        while sequences.done[0] < 300:
            count = min(chunk, 300 - sequences.done[0])
            parts.append(sequences.step([count, 1 if sequences.done[1] < 70 else 0])[0][1])
        whole = torch.cat(parts)
        want = whole if want is None else want
        assert torch.equal(whole, want)
    native.pool_init(2)


@pytest.mark.parametrize(
    "size, heads, dtype, block_size",
    [
        (64, 9, "bfloat16", 64),
        (37, 1, "bfloat16", 64),
        (64, 40, "bfloat16", 48),
        (16, 17, "float16", 32),
        (20, 1, "float16", 37),
        (64, 16, "float32", 64),
        (37, 1, "fp8_e4m3", 16),
    ],
)
def test_the_best_of_many_keys_are_chosen_to_the_last_equal_one(kernels, isa, size, heads, dtype, block_size):
    """Scores of all signs, many zero or equal to the worst chosen one, all exact; sizes and heads fill vectors or do not.

    Sixteen chosen keys lie in up to sixteen groups of the cache, and must come in their order.
    """
    sequences = Indexed("native", [3000], block_size, dtype, spec_of(300, heads, size))
    sequences.write([2996])
    chosen, out = sequences.step([4])[0]
    rounds = (isa == "amx" or isa.endswith("bf16")) and dtype in ("bfloat16", "fp8_e4m3")
    for row in range(4):
        position = 2996 + row
        assert chosen[row].tolist() == sequences.best(0, position).tolist()
        assert (out[row].double() - sequences.expected(0, position)).abs().max() < (0.04 if rounds else 1e-5)


@pytest.mark.parametrize("better", [0, 1])
def test_keys_that_a_sample_misses_are_chosen_like_others(kernels, isa, better):
    """Every eighth key, which is all that a sample of 512 of 4,096 sees, is better or worse than any other."""
    sequences = Indexed("native", [4096], 64, "float32", spec_of(300, 1, 16))
    sequences.weights[0][:] = 1
    sequences.queries[0][:] = 1
    sequences.keys[0].clamp_(min=0)
    sequences.keys[0][::8] = 9 * better
    sequences.write([4095])
    assert sequences.step([1])[0][0][0].tolist() == sequences.best(0, 4095).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_score_that_is_no_number_is_the_worst(kernels, backend):
    sequences = Indexed(backend, [60])
    sequences.keys[0][[3, 40]] = torch.nan
    chosen, out = sequences.step([60])[0]
    assert not set(chosen[50].tolist()) & {3, 40}
    assert not out.isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_drafts_of_a_tree_read_the_keys_of_their_own_branch(kernels, backend):
    """Two rows at one position: the key before each lies in a slot outside the table."""
    sequences = Indexed(backend, [50, 4])
    sequences.write([50, 4])
    spare = [int(sequences.table[1, 0]) * 16 + offset for offset in (2, 3)]  # of the other sequence, as a branch would
    slot = int(sequences.table[0, 3]) * 16 + 1
    view = sequences.view([0], [1, 0])
    tree = BatchView(
        num_tokens=2, num_seqs=2, block_size=16, max_query_len=1, max_seq_len=50, query_lens=[1, 1], seq_lens_list=[50, 50],
        cu_seqlens_q=torch.tensor([0, 1, 2]).int(), seq_lens=torch.tensor([50, 50]).int(),
        block_table=view.block_table.repeat(2, 1), slot_mapping=torch.tensor([slot, slot]), positions=torch.tensor([49, 49]),
        tails=torch.tensor([[spare[0], -1], [spare[1], -1]]).int(),
    )  # fmt: skip
    chosen, out = sequences.attend(sequences.backend.build(tree), lambda parts: parts[0][49:50].repeat_interleave(2, 0))
    for row, token in enumerate((2, 3)):
        branch = Indexed(backend, [50, 4])
        for parts in (branch.keys, branch.c, branch.k_pe):
            parts[0][48] = parts[1][token]
        want = branch.step([50, 4])[0][0][49]
        assert torch.equal(chosen[row], want)
        torch.testing.assert_close(out[row].double(), branch.expected(0, 49), atol=1e-5, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype, block_size", [("bfloat16", 16), ("float32", 3), ("fp8_e4m3", 8)])
def test_moved_slots_take_their_keys_with_them(kernels, backend, dtype, block_size):
    sequences = Indexed(backend, [40, 30], block_size, dtype)
    sequences.write([40, 30])
    before = sequences.raw.clone()
    sources = torch.tensor([int(sequences.table[0, 25 // block_size]) * block_size + 25 % block_size])
    targets = torch.tensor([int(sequences.table[0, 9 // block_size]) * block_size + 9 % block_size])
    sequences.backend.move(sequences.layer, sources, targets)
    moved = Indexed(backend, [40, 30], block_size, dtype)
    for parts in (moved.c, moved.k_pe, moved.keys):
        parts[0][9] = parts[0][25]
    moved.write([40, 30])
    assert torch.equal(sequences.raw, moved.raw)
    assert not torch.equal(sequences.raw, before)


def test_a_layer_that_reuses_a_choice_stores_no_keys(kernels):
    own, other = spec_of(), spec_of(reuses=True)
    backend = CpuPagedAttention()
    sizes = [backend.kv_layout(spec, 16, "fp8_e4m3").block_bytes for spec in (own, other)]
    assert sizes == [16 * (40 + 2 * 16), 16 * 40]


def test_what_is_too_large_is_said(kernels):
    reasons = unsupported(AttentionQuery(spec_of(size=272), "cpu", "float32", 16))
    assert [reason.code for reason in reasons] == ["index_head_dim"]
