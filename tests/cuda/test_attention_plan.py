"""The list of a step's work for the attention kernel, as the kernel that writes it does in the interpreter: every key of
every tile once, in whole sections, and no program with much more than its share.
"""

import heapq
from collections import defaultdict
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from core.api.specs import AttentionSpec
from core_kit.oracles.numbers import generator, same_bits
from core_kit.oracles.reference import Conversation, PagedRun, batch_view
from core_runtime.contracts import BatchView

pytest.importorskip("triton")
from core_attention.triton import launch
from core_attention.triton import plan as plans
from core_attention.triton.attended import Attended, attended
from core_attention.triton.backend import TritonAttention
from core_attention.triton.plan import Step, limits_of

LLAMA = AttentionSpec(32, 8, 128, 128, 0.088)
SMALL = AttentionSpec(2, 1, 16, 16, 0.25)
MULTIPROCESSORS = 132
PROGRAMS = 4 * MULTIPROCESSORS
"""Among so many the backend divides a step on an H100 or H200."""
RESIDENT = 2 * MULTIPROCESSORS
"""Programs of decoding that these run at once."""


class Item(NamedTuple):
    """An item of the list, see `core_attention.triton.work`."""

    nth: int
    first_row: int
    query_len: int
    seq_len: int
    first_query: int
    begin: int
    end: int
    room: int


def layer_of(spec: AttentionSpec, for_prompts: bool = False) -> Attended:
    own, _ = attended(spec, "bfloat16", torch.bfloat16, "sm_90", for_prompts=for_prompts)
    return own


def step_of(query_lens: list[int], seq_lens: list[int], max_seq_len: int = 1 << 18) -> BatchView:
    """A step as a recording describes it. Its block tables are not read here."""
    tables = [[0] for _ in seq_lens]
    view = batch_view(query_lens, query_lens, tables, max(query_lens))
    lengths = torch.tensor(seq_lens, dtype=torch.int32)
    return replace(view, seq_lens=lengths, max_seq_len=max_seq_len, query_lens=[], seq_lens_list=[])


def items_of(own: Attended, view: BatchView, wanted: int) -> list[Item]:
    """The list that a step's layers share."""
    plan = Step(view, wanted).plan(own)
    count = int(plan.items[0, 0])
    assert count <= len(plan.items) - 1 == limits_of(own, view, wanted).items
    assert not plan.arrived.any()
    return [Item(*row) for row in plan.items[1 : 1 + count].tolist()]


def work_of(items: list[Item], lanes: int, resident: int) -> list[int]:
    """The keys that each of the programs running at once reads, if the next one begins where one ends."""
    running = [0] * resident
    for item in items:
        for _ in range(lanes):
            heapq.heapreplace(running, running[0] + item.end - item.begin)
    return running


def test_one_long_sequence_among_short_ones_is_shared_by_all_programs() -> None:
    own = layer_of(LLAMA)
    lengths = [1024] * 63 + [131072]
    items = items_of(own, step_of([1] * 64, lengths), PROGRAMS)
    assert len(items) * own.lanes == (63 + 16) * 8
    work = work_of(items, own.lanes, RESIDENT)
    assert sum(work) == sum(lengths) * own.lanes
    assert max(work) == 131072 // 16, "a section: what one program sums in order"
    assert max(work) / (sum(work) / RESIDENT) < 1.4


@pytest.mark.parametrize("count, length", [(1, 131072), (64, 8192), (256, 1024), (40, 4096), (300, 700)])
def test_equal_sequences_are_shared_by_all_programs(count: int, length: int) -> None:
    own = layer_of(LLAMA)
    items = items_of(own, step_of([1] * count, [length] * count), PROGRAMS)
    work = work_of(items, own.lanes, RESIDENT)
    assert max(work) <= max(length // 16, 1.25 * sum(work) / RESIDENT)


def sections_of(position: int, window: int) -> int:
    """Keys of each section of a row."""
    length = 128
    while 16 * length < min(position + 1, window or position + 1):
        length *= 2
    return length


def tile_keys(own: Attended, query_len: int, seq_len: int, first_query: int) -> tuple[int, int, int]:
    """The keys of a tile from begin to end, and the keys of a section of its last row."""
    first = seq_len - query_len + first_query
    last = min(first + own.queries, seq_len) - 1
    lowest = 0
    if own.window:
        lowest = first - first % own.window if own.is_chunked else max(first - own.window + 1, 0)
    return lowest // own.keys * own.keys, last + 1, sections_of(last, own.window)


STEPS = {
    "decode": ([1] * 5, [1, 130, 2048, 2049, 70000]),
    "prompts and padding": ([700, 1, 40, 0, 0], [700, 4100, 2090, 0, 0]),
    "chunks": ([64, 17, 1, 333], [64 + 2000, 17, 33000, 8400]),
}
LAYERS = {
    "all keys": LLAMA,
    "one head": AttentionSpec(4, 4, 64, 64, 0.1),
    "window": AttentionSpec(8, 2, 64, 64, 0.1, window=2048),
    "chunked": AttentionSpec(8, 2, 64, 64, 0.1, window=200, chunked=True),
}


@pytest.mark.parametrize(
    "wanted",
    [40, pytest.param(1, marks=pytest.mark.gpu_interpreter), pytest.param(10**6, marks=pytest.mark.gpu_interpreter)],
)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("step", STEPS)
def test_a_list_has_every_key_of_every_tile_once(step: str, layer: str, wanted: int) -> None:
    query_lens, seq_lens = STEPS[step]
    view = step_of(query_lens, seq_lens)
    own = layer_of(LAYERS[layer], for_prompts=view.max_query_len > 1)
    items = items_of(own, view, wanted)
    tiles = defaultdict(list)
    for item in items:
        assert (item.query_len, item.seq_len) == (query_lens[item.nth], seq_lens[item.nth])
        assert item.first_row == sum(query_lens[: item.nth])
        tiles[item.nth, item.first_query].append(item)
    starts = [(nth, first) for nth, rows in enumerate(query_lens) for first in range(0, rows, own.queries)]
    assert sorted(tiles) == starts
    used: set[int] = set()
    for (nth, first), parts in tiles.items():
        begin, end, section = tile_keys(own, query_lens[nth], seq_lens[nth], first)
        parts.sort(key=lambda item: item.begin)
        assert [item.end for item in parts] == [item.begin for item in parts[1:]] + [end]
        assert parts[0].begin == begin and all(item.begin % section == 0 for item in parts[1:])
        rooms = {item.room for item in parts}
        assert len(rooms) == 1 and (min(rooms) >= 0) == (len(parts) > 1)
        if len(parts) > 1:
            rows = min(own.queries, query_lens[nth] - first)
            own_rows = set(range(parts[0].room, parts[0].room + rows))
            assert not own_rows & used
            used |= own_rows
    assert max(used, default=-1) < limits_of(own, view, wanted).room or not used


def test_without_room_for_partial_results_tiles_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    own = layer_of(LLAMA)
    view = step_of([1] * 3, [5000] * 3)
    assert len(items_of(own, view, 10**6)) > 3
    row = 4 * own.heads * 17 * (own.value_size + 2)
    monkeypatch.setattr(plans, "MAX_ROOM", 2 * row)
    items = items_of(own, view, 10**6)
    assert sorted(item.nth for item in items if item.room < 0) == [2]
    monkeypatch.setattr(plans, "MAX_ROOM", 0)
    assert [item.room for item in items_of(own, view, 10**6)] == [-1] * 3


def test_a_replayed_step_merges_in_order_whoever_comes_last() -> None:
    ends = [260, 5]
    random = generator("plan")
    talks = [Conversation.random(length, SMALL, "bfloat16", random) for length in ends]
    run = PagedRun(TritonAttention(10**6), SMALL, 64, "bfloat16", talks, generator("tables"))
    fill(run)
    view = batch_view([1, 1], ends, run.tables, 64)
    alone = TritonAttention(1)
    whole = attended_rows(alone, alone.bind(SMALL, 64, "bfloat16", run.raw), talks, alone.build(view))
    step = run.backend.build(view)
    same_bits(attended_rows(run.backend, run.handle, talks, step), whole, "divided")

    plan = step.plan(layer_in(step))
    count = int(plan.items[0, 0])
    assert count == 4, "three sections of one sequence, and the other one"
    plan.items[1 : 1 + count] = plan.items[1 : 1 + count].flip(0)
    assert not plan.arrived.any(), "the counters are as before the launch"
    same_bits(attended_rows(run.backend, run.handle, talks, step), whole, "in another order")
    assert not plan.arrived.any()


def fill(run: PagedRun) -> None:
    """Any keys and values, in all blocks."""
    cache = run.raw.view(torch.bfloat16)
    cache.copy_(torch.randn(cache.shape, generator=generator("cache")))


def attended_rows(backend: TritonAttention, handle: Any, talks: list[Conversation], step: Step) -> Tensor:
    """The output of each conversation's last row."""
    q = torch.stack([talk.q[-1] for talk in talks])
    out = torch.full((len(q), SMALL.num_heads, SMALL.head_size_v), torch.nan)
    backend.forward(handle, q, step, out)
    return out


def layer_in(step: Step) -> Attended:
    """The layer whose list a step has."""
    (own,) = step._plans
    return own


def test_layers_of_one_kind_share_a_list() -> None:
    view = step_of([1] * 3, [5000] * 3)
    step = Step(view, PROGRAMS)
    first = step.plan(layer_of(LLAMA))
    assert step.plan(layer_of(LLAMA)) is first
    assert step.plan(layer_of(LAYERS["window"])) is not first


class Recorded:
    """A kernel whose launches are written down as they are made, as a recorded step has them."""

    def __init__(self, kernel: Any, launches: list[tuple[Any, ...]]) -> None:
        self._kernel = kernel
        self._launches = launches

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            self._launches.append((self._kernel, grid, args, options))
            self._kernel[grid](*args, **options)

        return launch


@pytest.mark.gpu_interpreter
def test_a_recorded_step_is_replayed_with_other_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """One list for two layers, each with one launch; what differs in a replay lies in the step's tensors."""
    lengths = [260, 150, 5]
    random = generator("replay")
    talks = [Conversation.random(length, SMALL, "bfloat16", random) for length in lengths]
    run = PagedRun(TritonAttention(10**6), SMALL, 64, "bfloat16", talks, generator("tables"))
    fill(run)
    launches: list[tuple[Any, ...]] = []
    monkeypatch.setattr(plans, "plan", Recorded(plans.plan, launches))
    monkeypatch.setattr(launch, "attend", Recorded(launch.attend, launches))

    def rows_of(ends: list[int]) -> Tensor:
        return torch.stack([talk.q[max(end, 1) - 1] for talk, end in zip(talks, ends, strict=True)])

    view = replace(batch_view([1] * 3, lengths, run.tables, 64), max_seq_len=320, query_lens=[], seq_lens_list=[])
    step = run.backend.build(view)
    q = rows_of(lengths)
    outs = torch.full((2, 3, SMALL.num_heads, SMALL.head_size_v), torch.nan)
    for out in outs:
        run.backend.forward(run.handle, q, step, out)
    assert [kernel.fn.__name__ for kernel, *_ in launches] == ["plan", "attend", "attend"]
    recorded = list(launches)
    alone = TritonAttention(1)
    handle = alone.bind(SMALL, 64, "bfloat16", run.raw)
    for ends in ([130, 150, 1], [100, 20, 0], [260, 150, 5]):
        live = [end for end in ends if end]
        view.seq_lens.copy_(torch.tensor(ends))
        view.cu_seqlens_q.copy_(torch.tensor([0, 1, 2, len(live)]))
        q.copy_(rows_of(ends))
        outs.fill_(torch.nan)
        for kernel, grid, args, options in recorded:
            kernel[grid](*args, **options)
        fresh = torch.empty_like(outs[0])
        alone.forward(handle, q, alone.build(view), fresh)
        for out in outs:
            same_bits(out[: len(live)], fresh[: len(live)], f"{ends} keys")
