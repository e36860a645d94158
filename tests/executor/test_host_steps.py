"""What the host does for a steady step of 256 sequences, with room for 131,072 positions each: counted, not timed."""

import tracemalloc

import numpy as np
import pytest

from benchmarks.gpu_host import BLOCK_SIZE, HostSteps
from core_runtime.executor.steps.recordable import MIXED

SEQUENCES = 256
LENGTH = 131072


@pytest.fixture(scope="module")
def steady() -> HostSteps:
    """After the first steps, which record."""
    steps = HostSteps(SEQUENCES, LENGTH)
    for _ in range(2 * BLOCK_SIZE):
        steps.step(steps.plan())
    return steps


def test_a_step_sends_what_changed(steady: HostSteps) -> None:
    """A key, a position, a length and a slot for each sequence, and 16 blocks: kilobytes, where the tables have 8 MiB."""
    for _ in range(BLOCK_SIZE):
        steady.calls.copied.clear()
        steady.step(steady.plan())
        assert len(steady.calls.copied) == 2
        assert sum(steady.calls.copied) < 32 << 10
    assert steady.buffers.block_tables[0].tensor.nbytes == 8 << 20


def test_the_tables_of_the_device_are_those_of_the_host(steady: HostSteps) -> None:
    table = steady.buffers.block_tables[0].tensor.numpy()
    host = steady.batch.tables._tables[0]
    for slot in range(SEQUENCES):
        assert np.array_equal(table[slot, : host.lengths[slot]], host.stored[slot, : host.lengths[slot]])


def test_a_step_is_one_replay_of_each_kind(steady: HostSteps) -> None:
    """The layers, and the head with the draw; nothing is recorded or computed call by call."""
    calls = steady.calls
    recorded, replayed = calls.recorded, calls.replayed
    for _ in range(10):
        steady.step(steady.plan())
    assert (calls.recorded - recorded, calls.replayed - replayed) == (0, 20)
    assert not steady.runner.forward.recorder.unrecorded


def test_steps_keep_no_memory(steady: HostSteps) -> None:
    """Apart from the history of copies, which this device keeps for its tests.

    Threads and garbage of earlier tests are in the figures too, but not in those of each of three periods.
    """
    plans = [steady.plan() for _ in range(4 * BLOCK_SIZE)]
    kept, most = [], []
    tracemalloc.start()
    try:
        for start in range(0, len(plans), BLOCK_SIZE):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            for plan in plans[start : start + BLOCK_SIZE]:
                steady.step(plan)
                steady.calls.copied.clear()
            after, peak = tracemalloc.get_traced_memory()
            kept.append(after - before)
            most.append(peak - before)
    finally:
        tracemalloc.stop()
    assert min(kept[1:]) < 8 << 10 and min(most[1:]) < 128 << 10


def test_a_step_with_a_prompt_is_replayed_too() -> None:
    """One sequence leaves and another comes in each step: 555 rows, padded to 640, and no table travels whole."""
    steps = HostSteps(SEQUENCES, LENGTH)
    steps.step(steps.plan())
    for _ in range(4):
        steps.step(steps.arrival())
    calls = steps.calls
    recorded, replayed = calls.recorded, calls.replayed
    for _ in range(10):
        calls.copied.clear()
        steps.step(steps.arrival())
        assert sum(calls.copied) < 64 << 10
    assert (calls.recorded - recorded, calls.replayed - replayed) == (0, 20)
    assert not steps.runner.forward.recorder.unrecorded
    assert list(steps.runner.forward.recorder._kinds[MIXED].calls) == [640]
