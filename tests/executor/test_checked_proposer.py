"""A proposer that is slow, or that loops in its own thread, is done without; a good one is called as it was before."""

import threading
import time

import pytest

from core import LLM
from core.api.config import ResolvedPlugin
from core_runtime.contracts import ProposerInput, RequestFacts
from core_runtime.executor.background_calls import BackgroundCalls
from core_runtime.executor.drafts import checked_proposer
from core_runtime.executor.drafts.checked_proposer import SLOW_STEPS, CheckedProposer

ROW = ResolvedPlugin(kind="speculative", name="odd", target="odd", distribution="odd-package", version="1")
KEY = ("r", 0)
BATCH = ProposerInput([KEY], [[3]], [2])
HEAVY_S = 0.5


class Clock:
    """Seconds as a test wants them."""

    now = 0.0

    def __call__(self):
        return self.now


class Slow:
    """Takes its time. seconds: for the next drafts."""

    def __init__(self, clock):
        self.clock = clock
        self.seconds = HEAVY_S
        self.calls = []

    def on_request(self, key, facts):
        self.calls.append(("request", key, facts))

    def on_start(self, key, token_ids):
        self.calls.append(("start", key, token_ids))

    def propose(self, batch):
        self.clock.now += self.seconds
        return [[7, 8][:budget] for budget in batch.budget]

    def on_finished(self, key):
        self.calls.append(("finished", key))


def step(proposer, clock, seconds):
    """One step of the model, then its drafts."""
    clock.now += seconds
    return proposer.propose(BATCH)


@pytest.fixture
def clock():
    return Clock()


def test_one_that_is_slower_than_the_model_for_some_steps_is_switched_off(clock):
    proposer = CheckedProposer(Slow(clock), ROW, 9, clock=clock)
    for _ in range(SLOW_STEPS):
        assert step(proposer, clock, HEAVY_S / 2) == [[7, 8]]
    assert "slower than the model in 16 steps on end (500 ms for drafts, 250 ms for the rest" in proposer.off
    assert "speculative plugin 'odd' (odd-package 1)" in proposer.off
    before = clock.now
    assert proposer.propose(BATCH) == [[]] and clock.now == before
    proposer.on_start(KEY, [1])
    proposer.on_finished(KEY)


def test_slow_steps_between_others_and_short_ones_are_allowed(clock):
    plugin = Slow(clock)
    proposer = CheckedProposer(plugin, ROW, 9, clock=clock)
    for number in range(5 * SLOW_STEPS):
        rare = HEAVY_S * 2 if number % SLOW_STEPS == 0 else HEAVY_S / 2
        step(proposer, clock, rare)
    plugin.seconds = checked_proposer.SLOW_S / 2
    for _ in range(2 * SLOW_STEPS):
        step(proposer, clock, 0.0)
    assert not proposer.off


def test_all_calls_come_in_order_and_from_one_thread(clock):
    plugin = Slow(clock)
    proposer = CheckedProposer(plugin, ROW, 9, clock=clock)
    facts = RequestFacts("anna", None)
    proposer.on_request(KEY, facts)
    proposer.on_start(KEY, [1, 2])
    proposer.propose(BATCH)
    proposer.on_finished(KEY)
    assert plugin.calls == [("request", KEY, facts), ("start", KEY, [1, 2]), ("finished", KEY)]
    proposer.close()


def test_a_call_that_loops_for_ever_ends_soon_after_nobody_waits_for_it():
    calls = BackgroundCalls("looping")
    threads = []

    def loop():
        threads.append(threading.current_thread())
        while True:
            pass

    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        calls.call(loop, limit_s=0.05)
    threads[0].join(20)
    assert not threads[0].is_alive()


def test_an_answer_that_comes_too_late_belongs_to_no_other_call():
    calls = BackgroundCalls("late")
    assert calls.call(time.sleep, 0, limit_s=20) is None
    assert calls.call(sum, [1, 2], limit_s=20) == 3
    with pytest.raises(ZeroDivisionError):
        calls.call(lambda: 1 // 0, limit_s=20)
    assert calls.call(sum, [4], limit_s=20) == 4
    calls.close()


def test_its_thread_ends_with_the_engine(tiny_llama):
    drafts = {"method": "ngram", "num_speculative_tokens": 2}
    with LLM(str(tiny_llama), device="cpu", max_model_len=64, speculative_config=drafts) as llm:
        llm.generate([{"prompt_token_ids": [1, 40, 41, 40, 41]}], use_tqdm=False)
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "proposer ngram"]
    thread.join(20)
    assert not thread.is_alive()
