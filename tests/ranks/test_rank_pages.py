"""Ranks with KV connectors: each rank keeps its part of a page, and prompts go on from pages with the tokens of one engine."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from core import LLM, SamplingParams
from core.api.kv_transfer import KVTransfers
from core.api.step_plan import StepPlan, StepResult
from core_distributed.pages import FollowingPages, LeadingPages
from core_kv_connectors.shared_pages import PlacedTransfers, place_of, places_of
from core_supervision.link.anonymous_file import anonymous_file
from tests.ranks.test_ranks import FEW, ranks_of, saved
from tests.tiny_models import save_checkpoint

FIRST, *OTHERS = ([1, *(3 + stride * index % 250 for index in range(96))] for stride in (1, 3, 7))
ROOM = {"max_model_len": 128, "num_gpu_blocks_override": 10, "max_num_seqs": 1}
SHAPES = {"ranks": {"tensor_parallel_size": 2}, "stages": {"pipeline_parallel_size": 2}}
TOKENS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def engine(path: Path, **settings: Any) -> LLM:
    return LLM(model=str(path), **{**FEW, **ROOM, **settings})


def run(llm: LLM, *prompts: list[int]) -> list[tuple[list[int], int]]:
    """Tokens and the number of cached ones, of each prompt, one after the other."""
    found = []
    for prompt in prompts:
        (output,) = llm.generate([{"prompt_token_ids": prompt}], TOKENS, use_tqdm=False)
        found.append((list(output.outputs[0].token_ids), output.num_cached_tokens or 0))
    return found


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("pages") / "llama")


@pytest.fixture(scope="module")
def expected(llama: Path) -> list[list[int]]:
    """The tokens of one rank without a cache."""
    llm = engine(llama, enable_prefix_caching=False)
    return [tokens for tokens, _ in run(llm, FIRST, *OTHERS)]


@pytest.mark.parametrize("shape", SHAPES)
def test_evicted_blocks_come_back_from_host_memory(
    llama: Path, expected: list[list[int]], shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a sleep; a step whose copies fail on one rank fails its sequence alone."""
    llm = engine(llama, kv_offloading_size=1, enable_sleep_mode=True, **SHAPES[shape])
    try:
        executor = ranks_of(llm)
        assert executor.page_bytes > executor.worker.kv_memory.page_bytes
        prompts = [FIRST, *OTHERS, FIRST, OTHERS[0]]
        got = run(llm, *prompts)
        assert [tokens for tokens, _ in got] == [*expected, expected[0], expected[1]]
        assert [cached for _, cached in got] == [0, 0, 0, 96, 96]
        llm.sleep(1)
        llm.wake_up()
        assert run(llm, FIRST) == [(expected[0], 96)]
        assert llm.llm_engine.stats().tier_hits >= 3 * 96
        memory = executor.worker.kv_memory
        transfer, failures = memory.transfer, []

        def fails_once(transfers: Any, copies: Any = ()) -> Any:
            if not failures:
                failures.append(transfers)
                raise RuntimeError("this rank copies nothing")
            return transfer(transfers, copies)

        monkeypatch.setattr(memory, "transfer", fails_once)
        got = run(llm, OTHERS[1], FIRST, OTHERS[0], OTHERS[1])
        assert failures and got[0][0] == [], "the one sequence of the step has ended with an error"
        assert [tokens for tokens, _ in got[1:]] == [expected[0], expected[1], expected[2]]
    finally:
        ranks_of(llm).close()


@pytest.mark.slow
def test_pages_on_disk_outlive_an_engine_and_are_those_of_its_layout(
    llama: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    """Two ranks and two stages find their own pages after a start, and never those of the other."""
    kept = {"kv_offloading_disk_path": str(tmp_path / "pages")}
    for shape, cached in (("ranks", 0), ("stages", 0), ("ranks", 96)):
        with engine(llama, **kept, **SHAPES[shape]) as llm:
            assert run(llm, FIRST) == [(expected[0], cached)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_states_come_back_from_host_memory(tmp_path: Path, shape: str) -> None:
    """Gated delta nets: a snapshot is several pages, each with a part in every rank."""
    path = saved("gated delta", tmp_path)
    room = {"num_gpu_blocks_override": 24}
    prompts = [FIRST, *OTHERS, FIRST]
    whole = run(engine(path, enable_prefix_caching=False, **room), *prompts)
    llm = engine(path, kv_offloading_size=1, **room, **SHAPES[shape])
    try:
        got = run(llm, *prompts)
        assert [tokens for tokens, _ in got] == [tokens for tokens, _ in whole]
        assert got[-1][1] == 96 and llm.llm_engine.stats().tier_hits  # some blocks are in the cache still
    finally:
        ranks_of(llm).close()


@pytest.mark.slow
def test_ranks_take_pages_of_ranks_in_another_server(llama: Path, expected: list[list[int]], tmp_path: Path) -> None:
    shared = {"kv_connectors": ["file"], "kv_connectors_config": {"file": {"directory": str(tmp_path / "pages")}}}
    with engine(llama, **shared, **SHAPES["ranks"]) as first:
        assert run(first, FIRST) == [(expected[0], 0)]
    address = f"ipc://{tmp_path}/events"
    told = {"kv_events_config": {"enable_kv_cache_events": True, "endpoint": address}}
    drafts = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}}
    context: zmq.Context[Any] = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe("")
    subscriber.connect(address)
    with engine(llama, **shared, **drafts, **told, **SHAPES["ranks"]) as second:
        assert run(second, FIRST, OTHERS[0], FIRST) == [(expected[0], 96), (expected[1], 0), (expected[0], 96)]
        assert subscriber.poll(5000), "events tell of the blocks"
    context.destroy(0)


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = anonymous_file("test-pages", 0)
    yield descriptor
    os.close(descriptor)


def copies(lead: LeadingPages, number: int) -> StepPlan:
    """A plan that saves two blocks."""
    return lead.place(StepPlan(transfers=KVTransfers(number, [1, 2], [])), number)


def places(plan: StepPlan) -> set[int]:
    assert isinstance(plan.transfers, PlacedTransfers)
    return set(places_of(plan.transfers.into))


def test_each_rank_has_its_part_of_a_page(file: int) -> None:
    sizes = [100, 0, 60]
    lead, last = LeadingPages(file, sizes), FollowingPages(file, 2, sizes)
    plan = copies(lead, 1)
    own = lead.own(plan).transfers
    assert isinstance(own, PlacedTransfers) and isinstance(plan.transfers, PlacedTransfers)
    own.into[0][:] = 1
    part = last.at(place_of(plan.transfers.into[0]))
    assert len(part) == 60
    part[:] = 3
    result = StepResult(pages=own.into)
    lead.complete(plan, result)
    assert result.pages is not None and result.pages[0].tolist() == [1] * 100 + [3] * 60


def test_places_of_a_failed_step_are_not_used_before_every_rank_has_passed_it(file: int) -> None:
    """A rank that is late would write into a page that somebody else keeps by then."""
    sizes = [100, 60, 60]
    lead, ranks = LeadingPages(file, sizes), [FollowingPages(file, rank, sizes) for rank in (1, 2)]
    failed = places(copies(lead, 5))
    ranks[0].passed(-5)
    assert not failed & places(copies(lead, 6))
    assert not failed & places(copies(lead, 7))
    ranks[1].passed(5)
    later = [copies(lead, number) for number in (8, 9)]
    assert failed <= places(later[0]) | places(later[1])


def test_a_step_with_copies_waits_for_all_ranks(file: int) -> None:
    sizes = [100, 60]
    lead, other = LeadingPages(file, sizes), FollowingPages(file, 1, sizes)
    looks: list[int] = []
    with pytest.raises(TimeoutError, match="step 5"):
        lead.wait(5, lambda: looks.append(1), 0.01)
    assert looks

    def passes() -> None:
        other.passed(5)

    lead.wait(5, passes, 60.0)
    other.passed(-6)
    with pytest.raises(RuntimeError, match="failed in step 6"):
        lead.wait(6, passes, 60.0)
