"""The engine on the runtime of GPUs, over a device that works late: the same tokens as the CPU, and nobody waits for it."""

import contextlib
import gc
import types
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from core import LLM, SamplingParams
from core.api.errors import UserError
from core_kit.devices.fake_device import FakeCalls, Watch
from core_kit.devices.fake_space import POISON, FakeSpace
from core_kit.devices.graph_runtime import FakeGraphAttention
from core_platforms.cuda.graphs import Graphs
from core_platforms.cuda.virtual_memory import TaggedMemory
from core_runtime.executor.steps.staging import RING, Returns
from core_runtime.sampling.changes.host_logits import HostLogits
from tests.executor.regex_grammar import generate, install
from tests.executor.test_doubles import TORCH, double, expected_of, results, settings
from tests.executor.test_grammars import PATTERNS, force_nothing, params
from tests.inside import core_of, worker_of

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "adaptive": False}


def calls_of(llm: LLM) -> FakeCalls:
    return worker_of(llm).runtime.calls


VARIANTS = {
    "planned ahead": {"async_scheduling": True},
    "one by one": {"async_scheduling": False},
    "never recorded": {"enforce_eager": True},
    "drafts": {"speculative_config": NGRAM},
    "blocks from host memory": {"kv_offloading_size": 0.01},
}


QUICK = {("tiny_llama", "planned ahead"), ("tiny_gemma3", "planned ahead"), ("tiny_llama", "drafts")}
CASES = [
    pytest.param(model, variant, marks=() if (model, variant) in QUICK else pytest.mark.slow)
    for model in ("tiny_llama", "tiny_gemma3")
    for variant in VARIANTS
]


@pytest.mark.parametrize("model, variant", CASES)
def test_the_same_tokens_as_the_cpu(request: pytest.FixtureRequest, model: str, variant: str) -> None:
    """Chunks, preemptions, greedy and seeded requests, some of which ask for more than tokens."""
    checkpoint = request.getfixturevalue(model)
    with LLM(**(settings(checkpoint) | double("gpu") | VARIANTS[variant])) as llm:
        with watched(llm):
            assert results(llm) == expected_of(checkpoint)
        calls = calls_of(llm)
        assert calls.uploads > 10
        assert (calls.copies_aside > 0) == (variant == "blocks from host memory")
        if variant == "never recorded":
            assert calls.recorded == 0
        else:
            assert calls.replayed > calls.recorded > 3
        if variant in ("planned ahead", "one by one"):
            assert llm.stats().num_preemptions > 0


PLAIN = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=5, max_tokens=24, ignore_eos=True, top_p=0.9),
    SamplingParams(temperature=0.7, seed=7, max_tokens=24, ignore_eos=True, min_p=0.05, top_k=20),
]
PROMPTS = ["the quick brown fox jumps", "abcabcabc", "z"]


def tokens(llm: LLM, params: list[SamplingParams] = PLAIN) -> list[list[int]]:
    with watched(llm):
        return [list(out.outputs[0].token_ids) for out in llm.generate(PROMPTS, params, use_tqdm=False)]


def watched(llm: LLM):
    """What a host's own functions read of the device is there, as on a device; on the CPU there is nothing to do."""
    calls = getattr(worker_of(llm).runtime, "calls", None)
    return contextlib.nullcontext() if calls is None else Watch(calls)


ROOM = {"max_model_len": 64, "max_num_seqs": 8, "block_size": 8, "dtype": "float32", "num_gpu_blocks_override": 64}


def watch_steps(llm: LLM) -> tuple[list[tuple[int, int]], list[int]]:
    """Of each plan that goes on: reads of the device and copies to it while it is given, and steps that are then with it."""
    executor = core_of(llm).executor
    ahead = executor.worker.ahead
    calls = calls_of(llm)
    submit = executor.submit
    followed: list[tuple[int, int]] = []
    in_flight: list[int] = []

    def counted(plan):
        reads, uploads = calls.reads.total(), calls.uploads
        ticket = submit(plan)
        if plan.same_batch:
            followed.append((calls.reads.total() - reads, calls.uploads - uploads))
            in_flight.append(len(ahead.in_flight))
        return ticket

    executor.submit = counted
    return followed, in_flight


def test_the_engine_never_waits_between_a_plan_and_its_result(tiny_llama: Path) -> None:
    """While a step goes on from the one before, nothing is read of the device, and one step is always with it."""
    with LLM(model=str(tiny_llama), **ROOM, **TORCH) as plain:
        expected = tokens(plain)
    with LLM(model=str(tiny_llama), **ROOM, **double("gpu")) as llm:
        followed, in_flight = watch_steps(llm)
        assert tokens(llm) == expected
        assert len(followed) > 15
        assert set(followed) == {(0, 1)}
        assert in_flight.count(2) > 15


TOLD = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3, prompt_logprobs=1),
    SamplingParams(temperature=0.9, seed=5, max_tokens=24, ignore_eos=True, top_p=0.9),
    SamplingParams(temperature=0.7, seed=7, max_tokens=24, ignore_eos=True, logprobs=0),
]


CHANGED = [
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, repetition_penalty=1.3, logprobs=2),
    SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True, presence_penalty=0.5, logit_bias={70: 2.0}),
    SamplingParams(temperature=1.0, seed=4, max_tokens=12, min_tokens=8, allowed_token_ids=list(range(60, 120))),
]


def told(llm: LLM, params: list[SamplingParams] = TOLD) -> list:
    """Tokens, log-probabilities and ranks."""
    with watched(llm):
        outputs = [out.outputs[0] for out in llm.generate(PROMPTS, params, use_tqdm=False)]
    entries = [
        [{t: (p.logprob, p.rank) for t, p in position.items()} for position in o.logprobs or []] for o in outputs
    ]
    return list(zip([list(o.token_ids) for o in outputs], entries, strict=True))


def test_log_probabilities_come_back_with_the_tokens(tiny_llama: Path) -> None:
    """They keep nobody waiting: no read of the device and one copy to it, and no row of logits leaves it."""
    with LLM(model=str(tiny_llama), **ROOM, **TORCH) as plain:
        expected = told(plain)
    with LLM(model=str(tiny_llama), **ROOM, **double("gpu")) as llm:
        followed, in_flight = watch_steps(llm)
        assert told(llm) == expected
        # the first one waits for the step before it, in which a prompt was scored
        assert len(followed) > 15 and set(followed[1:]) == {(0, 1)}
        assert in_flight.count(2) > 15


def test_logits_are_changed_where_they_lie(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Penalties, biases and allowed tokens: what the CPU draws and tells, and the host sees no row of logits."""
    with LLM(model=str(tiny_llama), **ROOM, **TORCH) as plain:
        expected = told(plain, CHANGED)

    def seen(*args):
        raise AssertionError("the host looks at logits")

    monkeypatch.setattr(HostLogits, "__getitem__", seen)
    with LLM(model=str(tiny_llama), **ROOM, **double("gpu")) as llm:
        assert told(llm, CHANGED) == expected


def test_masks_of_grammars_are_brought_in_one_copy(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answers as the CPU's, drawn on the device by the kernel that takes masks."""
    install(monkeypatch)
    force_nothing(monkeypatch)
    asked = params()[:3]

    def answers(llm: LLM) -> list:
        with watched(llm):
            outputs = generate(llm, PROMPTS, asked, PATTERNS[:3])
        return [[(list(one.token_ids), one.finish_reason) for one in out.outputs] for out in outputs]

    room = ROOM | {"max_model_len": 128}
    with LLM(model=str(tiny_llama), **room, **TORCH) as plain:
        expected = answers(plain)
    with LLM(model=str(tiny_llama), **room, **double("gpu")) as llm:
        sampler = worker_of(llm).runner.sampler
        calls = calls_of(llm)
        draw, copies = sampler.masked, []

        def counted(*args):
            copies.append(calls.uploads)
            draw(*args)

        sampler.masked = counted
        assert answers(llm) == expected
        assert len(copies) > 10


def test_a_sequence_without_finite_logits_fails_alone_among_steps_ahead(tiny_llama: Path) -> None:
    with LLM(model=str(tiny_llama), **ROOM, **TORCH) as plain:
        expected = tokens(plain)
    with LLM(model=str(tiny_llama), **ROOM, **double("gpu")) as llm:
        returns = worker_of(llm).ahead._returns
        begin, draws = returns.begin, 0

        def failing(words):
            nonlocal draws
            draws += 1
            if draws == 9:
                calls_of(llm).later(lambda: words[1:2].fill_(-1))
            return begin(words)

        returns.begin = failing
        with watched(llm):
            outputs = llm.generate(PROMPTS, PLAIN, use_tqdm=False)
        first, second, third = [out.outputs[0] for out in outputs]
        assert [list(first.token_ids), list(third.token_ids)] == [expected[0], expected[2]]
        assert second.finish_reason == "error" and list(second.token_ids) == expected[1][: len(second.token_ids)]
        assert tokens(llm) == expected


def test_memory_is_given_up_and_taken_again(tiny_llama: Path) -> None:
    """The cache comes back empty at the same addresses, so recordings are good again."""
    with LLM(model=str(tiny_llama), **ROOM, **double("gpu"), enable_prefix_caching=False) as llm:
        runtime = worker_of(llm).runtime
        expected = tokens(llm)
        space = runtime._memory._space
        free = space.free
        released = runtime.release("kv")
        assert released > 0 and space.free == free + released and runtime.release("kv") == 0
        space.free, others = released - 4096, space.free
        with pytest.raises(UserError, match="cannot be had"):
            runtime.restore("kv")
        assert space.free == released - 4096
        space.free = others
        runtime.restore("kv")
        runtime.restore("kv")
        assert space.free == free
        recorded = calls_of(llm).recorded
        assert tokens(llm) == expected
        assert calls_of(llm).recorded == recorded


def test_a_start_without_enough_memory_is_told_in_a_sentence(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plugin is blamed for it, nor left out in another start."""

    def load(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("core_runtime.executor.worker.Worker.build_models", load)
    with pytest.raises(UserError, match=r"it has too little memory .* MiB are left\); end what else uses it"):
        LLM(model=str(tiny_llama), **ROOM, **double("gpu"))


def test_a_sleeping_engine_leaves_no_weights_in_the_cache_of_freed_memory(tiny_llama: Path) -> None:
    """torch keeps freed memory until it is asked to return it, so that comes after everything has been freed."""
    with LLM(model=str(tiny_llama), **ROOM, **double("gpu"), enable_sleep_mode=True) as llm:
        expected = tokens(llm)
        worker = worker_of(llm)
        alive = [weakref.ref(tensor) for tensor in tensors_of(worker.instances)]
        assert len(alive) > 20
        returned: list[int] = []
        worker.runtime.calls.give_back = lambda: returned.append(sum(ref() is not None for ref in alive))
        llm.sleep(2)
        assert returned[-1] == 0
        llm.wake_up()
        assert tokens(llm) == expected


def tensors_of(root: object) -> list[torch.Tensor]:
    """All tensors that an object refers to, also through others, but for those of the device itself."""
    found: list[torch.Tensor] = []
    seen = {id(root)}
    waiting = [root]
    while waiting:
        for one in gc.get_referents(waiting.pop()):
            if id(one) in seen or isinstance(one, type | types.ModuleType | types.FunctionType | FakeCalls):
                continue
            seen.add(id(one))
            if isinstance(one, torch.Tensor):
                found.append(one)
            else:
                waiting.append(one)
    return found


def test_what_was_given_up_is_lost_and_comes_back_zeroed() -> None:
    space = FakeSpace(1 << 20)
    memory = TaggedMemory(space, lambda: None)
    cache = memory.allocate(5000, "kv")
    weights = memory.allocate(10, "weights")
    assert len(cache) == 5000 and not cache.any()
    cache.fill_(7)
    weights.fill_(9)
    assert memory.release("kv") == 8192
    assert cache.eq(POISON).all() and weights.eq(9).all()
    memory.restore("kv")
    assert not cache.any()
    with pytest.raises(MemoryError):
        memory.allocate(1 << 20, "kv")
    memory.close()
    assert space.free == 1 << 20


def test_graphs_stay_within_their_budget() -> None:
    """A size beyond it is computed call by call, and what was recorded stays."""
    calls = FakeCalls(graph_bytes=3 << 20)
    graphs = Graphs(calls, budget=5 << 20, largest=64)
    x = torch.ones(8, 2)

    def run() -> None:
        calls.run("scale", lambda: x.mul_(2), (), {})

    first, second, third = [graphs.capture(run, rows) for rows in (1, 2, 4)]
    assert (calls.recorded, graphs.spent) == (2, 6 << 20)
    for graph in (first, second, third):
        graph(1, 1)
    calls.synchronize()
    assert calls.replayed == 2 and x.eq(2**6).all()
    with pytest.raises(ValueError, match="2 rows"):
        first(2, 2)


def test_sizes_of_graphs() -> None:
    graphs = Graphs(FakeCalls(), budget=1, largest=256)
    assert graphs.sizes("sample from 8", 64) == [] and graphs.sizes("decode", 0) == []
    assert graphs.sizes("head", 3) == [1, 2, 3], "the largest step is not left out"
    sizes = graphs.sizes("decode", 4096)
    assert sizes[:5] == [1, 2, 4, 8, 16] and sizes[-1] == 256
    padded = [after / (before + 1) for before, after in pairwise(sizes) if before >= 8]
    assert max(padded) < 1.8


@pytest.mark.parametrize("largest, first", [(7, 7), (40, 16), (1000, 16), (1024, 16)])
def test_sizes_of_graphs_of_steps_with_prompts(largest: int, first: int) -> None:
    """Fewer than of decoding steps, none of a few rows, and the largest step among them, for prompts are cut to it."""
    graphs = Graphs(FakeCalls(), budget=1, largest=1024)
    sizes = graphs.sizes("mixed", largest)
    assert sizes == sorted(set(sizes)) and (sizes[0], sizes[-1]) == (first, largest)
    assert len(sizes) <= len(graphs.sizes("decode", largest)) and len(sizes) <= 18
    assert all(after / before <= (1.5 if before < 256 else 1.26) for before, after in pairwise(sizes) if before > 16)


@pytest.mark.parametrize(
    "asked, recorded",
    [
        ({"optimization_level": 0}, set()),
        ({"optimization_level": 1}, {4, 64}),
        ({"cudagraph_capture_sizes": [3]}, {3}),
        ({"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [2, 5, 50]}}, {5}),
        ({"compilation_config": {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [2, 5, 50]}}, {5, 50}),
        ({"max_cudagraph_capture_size": 2}, set()),
    ],
)
def test_levels_and_sizes_say_what_is_recorded(tiny_llama: Path, asked: dict, recorded: set[int]) -> None:
    """Three sequences, and their prompts of 35 tokens, are padded to the next size, and computed call by call beyond the
    largest.
    """
    with LLM(model=str(tiny_llama), **(ROOM | {"max_num_seqs": 6}), **asked, **double("gpu")) as llm:
        tokens(llm)
        kinds = worker_of(llm).runner.forward.recorder._kinds
        found = {size for kind in kinds.values() for size in kind.calls}
        assert found == recorded


def test_tokens_come_back_in_the_devices_own_time() -> None:
    """Each step's are poison until they are waited for, and its own although the device draws again meanwhile."""

    class Runtime:
        def __init__(self, calls):
            self.calls = calls

        def host_memory(self, nbytes):
            return self.calls.pinned(nbytes)

        def download(self, host, device):
            self.calls.copy(host, device)
            return self.calls.mark().synchronize

    calls = FakeCalls()
    returns = Returns(4, Runtime(calls))
    drawn = torch.zeros(4, dtype=torch.int64)
    found = []
    for step in range(RING):
        calls.later(lambda step=step: drawn.fill_(step))
        found.append(returns.begin(drawn[:2]))
    poison = np.frombuffer(bytes([POISON] * 16), np.int64)
    assert all((one.words == poison).all() for one in found)
    found[0].wait()
    assert found[0].words.tolist() == [0, 0] and (found[1].words == poison).all()
    found[2].wait()
    assert [one.words.tolist() for one in found] == [[0, 0], [1, 1], [2, 2]]


def test_a_backend_plans_each_step_that_a_recording_serves(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which the device computes them, however late it does."""
    planned, computed, handles = [], [], []
    forward = FakeGraphAttention._forward

    def plan_recorded(self, view, fixed):
        assert fixed.num_seqs >= view.num_seqs and not fixed.query_lens
        planned.append(list(view.seq_lens_list))

    def watched_forward(self, handle, q, out, cu_seqlens, seq_lens, *step):
        handles.append(handle)
        if handle is handles[0] and cu_seqlens.diff().max() == 1:
            computed.append([length for length in seq_lens.tolist() if length])
        forward(self, handle, q, out, cu_seqlens, seq_lens, *step)

    with LLM(model=str(tiny_llama), **ROOM, **TORCH) as plain:
        expected = tokens(plain)
    monkeypatch.setattr(FakeGraphAttention, "plan_recorded", plan_recorded, raising=False)
    monkeypatch.setattr(FakeGraphAttention, "_forward", watched_forward)
    with LLM(model=str(tiny_llama), **ROOM, **double("gpu")) as llm:
        assert tokens(llm) == expected
    # a recording is computed once more when it is made
    assert [
        lengths for number, lengths in enumerate(computed) if not number or lengths != computed[number - 1]
    ] == planned
    assert len(planned) > 5
