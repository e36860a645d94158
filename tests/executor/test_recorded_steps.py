"""Steps with prompts and steps that verify drafts are recorded, too: over the fake device, none is computed call by call."""

import logging
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core_kit.devices.fake_device import FakeCalls
from core_platforms.cuda.graphs import Graphs
from core_runtime.executor.recorder import Recorder
from core_runtime.executor.steps.recordable import DECODE, HEAD, MIXED, VERIFY
from core_runtime.sampling import DRAWS
from tests.executor.test_doubles import TORCH, double
from tests.executor.test_gpu_steps import NGRAM, watched
from tests.inside import worker_of

LOOPS = ["ab ab ab ab ab ab", "the fox the fox the", "xyzxyzxyz", "one two one two one"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=3, max_tokens=14, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=17, ignore_eos=True, logprobs=1),
    SamplingParams(temperature=0.6, seed=8, max_tokens=9, ignore_eos=True, top_k=9),
]
ROOM = {"max_num_seqs": 4, "max_num_batched_tokens": 24, "block_size": 8, "dtype": "float32", "max_model_len": 64}
FEW_BLOCKS = {"num_gpu_blocks_override": 9}
"""Too few for all four sequences."""


FORWARD = {DECODE, VERIFY, MIXED, HEAD, *DRAWS}


def tokens(llm: LLM) -> list[list[int]]:
    with watched(llm):
        return [list(out.outputs[0].token_ids) for out in llm.generate(LOOPS, PARAMS, use_tqdm=False)]


def recorder_of(llm: LLM) -> Recorder:
    return worker_of(llm).runner.forward.recorder


VARIANTS = {
    "ahead": {},
    "one by one": {"async_scheduling": False},
    "preempted": FEW_BLOCKS,
    "drafts": {"speculative_config": NGRAM},
    "drafts, preempted": {"speculative_config": NGRAM, **FEW_BLOCKS},
}


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=() if "preempted" in name else pytest.mark.slow) for name in VARIANTS]
)
def test_no_step_is_computed_call_by_call(tiny_llama: Path, variant: str) -> None:
    """Greedy and seeded requests, prompts in chunks: the tokens of the CPU, which records nothing here."""
    arguments = {"model": str(tiny_llama), **ROOM, **VARIANTS[variant]}
    with LLM(**arguments, **TORCH, enforce_eager=True) as plain:
        expected = tokens(plain)
    with LLM(**arguments, **double("gpu")) as llm:
        recorder = recorder_of(llm)
        assert tokens(llm) == expected
        assert not set(recorder.unrecorded) & FORWARD
        calls = worker_of(llm).runtime.calls
        recorded, replayed = calls.recorded, calls.replayed
        assert tokens(llm) == expected
        assert not set(recorder.unrecorded) & FORWARD
        assert calls.replayed - replayed > 20 > calls.recorded - recorded, "the sizes are known by now"
        verified = recorder._kinds[VERIFY].calls if "drafts" in variant else {}
        assert all(size % 4 == 0 for size in verified) and bool(verified) == ("drafts" in variant)
        if "drafts" not in variant:
            assert all(recorder._kinds[kind].calls for kind in DRAWS), (
                "with filters, and without any once that one has ended"
            )
        if "preempted" in variant:
            assert llm.stats().num_preemptions > 0


def test_steps_with_prompts_are_left_out_where_that_is_said(tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    """FULL_DECODE_ONLY records decoding steps and, as in vLLM, those that verify drafts; the log says so."""
    caplog.set_level(logging.INFO, "core_runtime.executor.recorder")
    mode = {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}, "speculative_config": NGRAM}
    with LLM(model=str(tiny_llama), **ROOM, **mode, **double("gpu")) as llm:
        assert "Steps that are recorded: decode, verify." in caplog.messages
        tokens(llm)
        recorder = recorder_of(llm)
        assert recorder.unrecorded[MIXED] > 0 and not recorder.records(MIXED)
        assert recorder._kinds[VERIFY].calls and recorder._kinds[DECODE].calls
        assert set(recorder.unrecorded) & FORWARD == {MIXED}


def test_whoever_spends_the_memory_of_graphs_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    calls = FakeCalls(graph_bytes=3 << 20)
    graphs = Graphs(calls, budget=5 << 20, largest=64)
    with caplog.at_level(logging.WARNING):
        for rows in (1, 2, 4, 8):
            graphs.capture(lambda: calls.run("scale", lambda: None, (), {}), rows)
    (said,) = caplog.messages
    assert "6 MiB of the 5 MiB of --platform-config.graph-mib" in said and calls.recorded == 2


class Sizes:
    """Records sizes 2 and 4. refused: rows that it cannot record."""

    def __init__(self, refused=()):
        self.refused = refused
        self.log: list[tuple[str, int]] = []

    def capture_sizes(self, kind: str, max_rows: int) -> list[int]:
        return [2, 4]

    def capture(self, run, num_rows, num_seqs):
        run()
        self.log.append(("record", num_rows))
        return None if num_rows in self.refused else lambda rows, seqs: self.log.append(("replay", rows))


def test_drafts_have_the_sizes_of_batches_times_their_rows() -> None:
    """A size that fails is left out alone, and what is computed call by call is counted."""
    runtime = Sizes(refused=(6,))
    recorder = Recorder(runtime)
    recorder.add(DECODE, 8)
    recorder.add_multiples(VERIFY, DECODE, 3, max_rows=12)
    ran: list[int] = []
    for rows in (5, 6, 12, 13):
        size = recorder.size(VERIFY, rows) or rows
        recorder.run(VERIFY, size, 4, lambda size=size: ran.append(size), (rows, 4))
    assert runtime.log == [("record", 6), ("record", 12), ("replay", 12)]
    assert ran == [6, 12, 13] and recorder.unrecorded == {VERIFY: 1}
    assert not recorder.has(DECODE, 2)
