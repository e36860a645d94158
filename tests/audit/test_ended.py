"""Ended answers computed again without the cache: damaged keys and values are found, clean ones raise no alarm."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.api.errors import EngineDeadError
from core.api.messages import EngineRequest
from core.scheduler.sequence import SequenceState
from core_observers.engine.audit.ended import REQUEST_ID
from core_observers.engine.audit.observer import MOST_MISMATCHES
from core_observers.families.audit_metrics import CLEAN, CLEAN_ANSWERS
from tests.audit.faulty import Faulty, after, flipped
from tests.audit.repeating import SETTINGS, Engine

MODELS = ("tiny_llama", "tiny_lfm2", "tiny_gemma3")


@pytest.fixture(scope="module", params=MODELS)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    path: Path = request.getfixturevalue(request.param)
    with LLM(str(path), audit_share=1.0, **SETTINGS) as llm:
        yield Engine(llm)


def flip_cached(engine: Engine, answer: SequenceState) -> None:
    """Change a bit of the first cached block of an answer."""
    engine.flip(next(filter(None, engine.core.scheduler.kv.lookup_now(answer).block_ids[0])))


def test_clean_answers_raise_no_alarm_and_leave_nothing_in_the_cache(engine: Engine) -> None:
    before = engine.counts
    for seed in range(3):
        engine.run(seed)
    engine.run(4, repetition_penalty=1.3, logprobs=2, top_p=0.9)
    engine.run(5, temperature=0.0, stop_token_ids=list(range(5, 60)), ignore_eos=False)
    engine.run(6, n=2, count=1)
    engine.settle()
    assert engine.new(before) == {CLEAN_ANSWERS: 12}
    first = engine.run(0)
    engine.settle()
    assert engine.run(0) == first  # from the cache


def test_a_bit_of_cached_keys_is_found_and_served_no_longer(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine.settle()
    before = engine.counts
    engine.run_alone(7)
    flip_cached(engine, engine.waiting()[0])
    engine.settle()
    assert engine.new(before) == {"cached": 1}
    assert "answer to request 'alone'" in caplog.text
    before, hits = engine.counts, engine.core.stats().prefix_hits
    engine.run_alone(7)
    assert engine.core.stats().prefix_hits == hits
    engine.settle()
    assert engine.new(before) == {CLEAN_ANSWERS: 1}


def test_damage_while_an_answer_is_generated_is_found(engine: Engine) -> None:
    """Rows of later steps read the damaged block, and so would a row that is computed again alone."""
    engine.settle()
    before = engine.counts
    ids = [(5 * place) % 90 + 5 for place in range(40)]
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    engine.core.add([EngineRequest("hit", 0, ids, params, seed=1)])
    for _ in range(4):
        engine.core.step()
    [sequence] = engine.core.scheduler._state.running.sequences
    block = next(filter(None, sequence.block_ids[0]))
    engine.flip(block)
    engine.settle()
    found = engine.new(before)
    assert found in ({"cached": 1}, {"answer": 1})


def test_live_requests_start_over_without_the_damaged_cache(engine: Engine) -> None:
    clean = engine.run(9, count=3, max_tokens=40)
    engine.settle()
    before = engine.counts
    engine.run_alone(9)
    flip_cached(engine, engine.waiting()[0])
    assert engine.run(9, count=3, max_tokens=40) == clean  # begun before the damage is found
    engine.settle()
    assert engine.new(before)["cached"] == 1


@pytest.mark.parametrize("engine", ["tiny_llama"], indirect=True)
@pytest.mark.parametrize("call", ["sleep", "update", "pause"])
def test_nothing_is_compared_across_a_change_of_the_engine(engine: Engine, call: str) -> None:
    engine.settle()
    before = engine.counts
    engine.run_alone(10)
    engine.core.step()
    if call == "sleep":
        engine.core.call("sleep", {"level": 1})
        engine.core.call("wake_up", {})
    elif call == "update":
        engine.core.call("reload_weights", {})
    else:
        engine.core.call("pause", {"mode": "abort"})
        engine.core.call("resume", {})
    assert not engine.waiting()
    assert REQUEST_ID not in {sequence.request.request_id for sequence in engine.core.scheduler.sequences}
    engine.settle()
    assert engine.new(before) == {}
    engine.run(11)
    engine.settle()
    assert engine.new(before) == {CLEAN_ANSWERS: 2}


@pytest.mark.parametrize("engine", ["tiny_llama"], indirect=True)
def test_answers_that_live_while_the_engine_changes_are_left_out(engine: Engine) -> None:
    engine.settle()
    before = engine.counts
    ids = [(5 * place) % 90 + 5 for place in range(30)]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    engine.core.add([EngineRequest("old", 0, ids, params, seed=1)])
    engine.core.step()
    engine.core.call("pause", {"mode": "keep"})
    engine.core.call("resume", {})
    engine.settle()
    assert engine.new(before) == {}


@pytest.mark.parametrize("engine", ["tiny_llama"], indirect=True)
def test_explain_tells_of_rows_and_discarded_steps(tiny_llama: Path, engine: Engine) -> None:
    ids = [(5 * place) % 90 + 5 for place in range(30)]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    [plain] = engine.llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False, explain=True)
    assert plain.explain is not None and plain.explain.audit is None
    with LLM(str(tiny_llama), audit_share=1.0, enable_prefix_caching=False, **SETTINGS) as llm:
        audited = Engine(llm)
        del audited.audit._row  # type: ignore[attr-defined]
        faulty = Faulty(audited.audit._executor._executor, after(flipped(0.1, 0)), 16)
        audited.audit._executor._executor = faulty

        def chance() -> float:
            faulty.armed = faulty.num_hits == 0
            return 0.0

        audited.audit._chance = chance
        audited.audit._ended._can_repeat = lambda _: False  # type: ignore[method-assign]
        prompts = [{"prompt_token_ids": ids}, {"prompt_token_ids": ids[1:]}]
        outputs = llm.generate(prompts, params, use_tqdm=False, explain=True)
        uses = [output.explain.audit for output in outputs if output.explain is not None]
        assert list(outputs[0].outputs[0].token_ids) == list(plain.outputs[0].token_ids)
        assert [use.discarded for use in uses if use is not None] == [{"cache": 1}, {"cache": 1}]
        assert sum(use.rows for use in uses if use is not None) == audited.counts[CLEAN]


@pytest.mark.parametrize("engine", ["tiny_llama"], indirect=True)
def test_three_damaged_answers_within_an_hour_end_the_engine(engine: Engine) -> None:
    """The last test of this file: its engine is gone."""
    engine.settle()
    engine.audit._times.clear()
    engine.audit._clock = lambda: 1.0
    with pytest.raises(EngineDeadError, match=f"Audits found {MOST_MISMATCHES} mismatches within an hour"):
        for seed in range(30, 30 + MOST_MISMATCHES):
            engine.run_alone(seed)
            flip_cached(engine, engine.waiting()[0])
            engine.settle()
