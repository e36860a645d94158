"""A layer whose keys ranks divide has the bits of the backend alone, in both ways to attend; ranks are threads here."""

import threading
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from core.api.specs import AttentionSpec, LatentSpec
from core_attention.cpu_paged.backend import CpuPagedAttention
from core_config.context_cost import token_traffic
from core_distributed.context.backend import ContextBackend
from core_distributed.context.division import Division
from core_runtime.contracts import AttentionParams, BatchView

BLOCK = 256
LENGTHS = ((1, 1), (1, 700), (1, 128), (3, 514), (1, 129), (2, 256))
"""New tokens and all tokens of each sequence."""
PROMPTS = ((300, 300), (60, 700), (100, 120))


@dataclass
class Meeting:
    """What ranks exchange. One computes at a time, since the native code has one pool of threads."""

    size: int
    shown: dict[int, Tensor] = field(default_factory=dict)
    ways: set[str] = field(default_factory=set)
    sent: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turn = threading.Lock()
        self.all_here = threading.Barrier(self.size, timeout=60)

    def exchanged(self, rank: int, x: Tensor) -> list[Tensor]:
        self.shown[rank] = x.clone()
        self.turn.release()
        self.all_here.wait()
        found = [self.shown[each] for each in range(self.size)]
        self.all_here.wait()
        self.turn.acquire()
        return found


class ThreadCommunicator:
    """The end of one rank."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size

    def _count(self, nbytes: int) -> None:
        """Note what rank 0 sends to each other one."""
        if self.rank == 0:
            self.meeting.sent.append(nbytes)

    def all_gather(self, x: Tensor, out: Tensor, start: int, root: int | None = None) -> None:
        assert start == self.rank * x.shape[1]
        self._count(x.nbytes)
        out.copy_(torch.cat(self.meeting.exchanged(self.rank, x), 1))

    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        self.meeting.ways.add("records")
        self._count(x.nbytes // self.size)
        out.copy_(torch.stack([each[self.rank] for each in self.meeting.exchanged(self.rank, x)]))


def step_of(lengths: Any, block: int, shift: int) -> BatchView:
    """A step whose sequences lie in blocks of their own, in no order."""
    query_lens, seq_lens = (list(each) for each in zip(*lengths, strict=True))
    widest = -(-max(seq_lens) // block)
    order = torch.randperm(len(lengths) * widest, generator=torch.Generator().manual_seed(shift)) + 1
    table = order.view(len(lengths), widest).to(torch.int32)
    positions = torch.cat([torch.arange(end - new, end) for new, end in lengths])
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(query_lens))
    slots = table[rows, positions // block].long() * block + positions % block
    return BatchView(
        num_tokens=len(positions), num_seqs=len(lengths), block_size=block, max_query_len=max(query_lens),
        max_seq_len=max(seq_lens), query_lens=query_lens, seq_lens_list=seq_lens,
        cu_seqlens_q=torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32), block_table=table, slot_mapping=slots, positions=positions,
    )  # fmt: skip


@dataclass
class Layer:
    """A layer's step. kept: keys of earlier tokens too, by number of the sequence and position."""

    spec: AttentionSpec | LatentSpec
    dtype: str
    params: AttentionParams | None = None

    def outputs(self, backend: Any, lengths: Any, block: int, rank: int = 0, ranks: int = 1) -> Tensor:
        """The outputs of rank `rank`, which has its part of the queries; the keys are those of all ranks."""
        spec: Any = self.spec
        latent = isinstance(spec, LatentSpec)
        whole = [(end, end) for _, end in lengths]
        before, step = step_of(whole, block, 1), step_of(lengths, block, 1)
        draw = torch.Generator().manual_seed(5)
        sizes = ((spec.rank,), (spec.rope_size,)) if latent else ((1, spec.head_size), (1, spec.head_size_v))
        keys = [torch.randn((before.num_tokens, *size), generator=draw) for size in sizes]
        widths = (spec.rank, spec.rope_size) if latent else (spec.head_size,)
        heads = spec.num_heads * 4
        mine = slice(rank * heads // ranks, (rank + 1) * heads // ranks)
        queries = [torch.randn((step.num_tokens, heads, width), generator=draw)[:, mine] for width in widths]
        own = self.local(heads // ranks)
        blocks = int(before.block_table.max()) + 1
        raw = torch.zeros((blocks, backend.kv_layout(own, block, self.dtype).block_bytes), dtype=torch.uint8)
        params = self.params
        if params is not None and params.sinks is not None:
            params = AttentionParams(sinks=params.sinks[mine].contiguous())
        handle = backend.bind(own, block, self.dtype, raw, params)
        written, metadata = backend.build(before), backend.build(step)
        out = torch.empty((step.num_tokens, heads // ranks, spec.rank if latent else spec.head_size_v))
        (backend.write_latent if latent else backend.write)(handle, *keys, written)
        if latent:
            backend.forward_latent(handle, *queries, metadata, out)
        else:
            backend.forward(handle, *queries, metadata, out)
        return out

    def local(self, heads: int) -> AttentionSpec | LatentSpec:
        return msgspec.structs.replace(self.spec, num_heads=heads)


def divided(
    layer: Layer, lengths: Any, ranks: int, size: int, piece: int, meeting: Meeting, longest: int = 800
) -> Tensor:
    """The outputs of all ranks, side by side."""
    found: dict[int, Tensor] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        with meeting.turn:
            try:
                division = Division(size, rank, ranks)
                communicator: Any = ThreadCommunicator(meeting, rank)
                backend = ContextBackend(CpuPagedAttention(), division, communicator, longest)
                found[rank] = layer.outputs(backend, lengths, piece * size, rank, ranks)
            except BaseException as error:
                errors.append(error)
                meeting.all_here.abort()
                raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return torch.cat([found[rank] for rank in range(ranks)], 1)


PLAIN = AttentionSpec(4, 1, 32, 32, 0.2)
LAYERS = {
    "plain": Layer(PLAIN, "bfloat16"),
    "float32": Layer(PLAIN, "float32"),
    "8 bits": Layer(PLAIN, "int8_per_token_head"),
    "4-bit values": Layer(PLAIN, "k8v4_per_token_head"),
    "bounded scores": Layer(AttentionSpec(4, 1, 32, 48, 0.2, cap=5.0), "float16"),
    "sinks": Layer(
        AttentionSpec(4, 1, 32, 32, 0.2, sinks=True), "bfloat16", AttentionParams(sinks=torch.linspace(-1, 2, 16))
    ),
    "window": Layer(AttentionSpec(4, 1, 32, 32, 0.2, window=150), "bfloat16"),
    "latent": Layer(LatentSpec(4, 64, 32, 16, 16, 0.2), "bfloat16"),
}


@pytest.mark.parametrize("lengths", [LENGTHS, PROMPTS], ids=["answers", "prompts"])
@pytest.mark.parametrize("name", LAYERS)
def test_divided_keys_give_the_bits_of_whole_ones(name: str, lengths: Any) -> None:
    layer = LAYERS[name]
    expected = layer.outputs(CpuPagedAttention(), lengths, 16)
    meeting = Meeting(2)
    assert torch.equal(divided(layer, lengths, 2, 2, 128, meeting), expected)
    assert ("records" in meeting.ways) == (lengths is LENGTHS and name != "window")


@pytest.mark.parametrize(("ranks", "size", "piece"), [(4, 2, 128), (4, 4, 128), (2, 2, 256)])
@pytest.mark.parametrize("lengths", [LENGTHS, PROMPTS], ids=["answers", "prompts"])
def test_every_division(lengths: Any, ranks: int, size: int, piece: int) -> None:
    layer = LAYERS["plain"]
    expected = layer.outputs(CpuPagedAttention(), lengths, 16)
    assert torch.equal(divided(layer, lengths, ranks, size, piece, Meeting(ranks)), expected)


@pytest.mark.parametrize("name", ["plain", "latent"])
def test_a_step_of_more_blocks_than_the_room_holds(name: str) -> None:
    layer = LAYERS[name]
    for lengths in (LENGTHS, ((200, 700), (200, 600), (200, 500))):
        expected = layer.outputs(CpuPagedAttention(), lengths, 16)
        assert torch.equal(divided(layer, lengths, 2, 2, 128, Meeting(2), longest=512), expected)


@pytest.mark.parametrize("name", ["plain", "bounded scores", "latent", "window"])
def test_ranks_send_what_is_explained(name: str) -> None:
    meeting, layer = Meeting(2), LAYERS[name]
    divided(layer, ((1, 3 * 256),), 2, 2, 128, meeting)
    messages, queries, records = token_traffic([layer.local(8)], 3)
    sent = meeting.sent if name != "window" else []
    assert (len(sent), sum(sent[:-1]), sum(sent[-1:])) == (messages, queries, records)
