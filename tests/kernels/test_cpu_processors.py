"""Compute threads: how many, on which processors, and the process as it was afterwards."""

import os

import pytest
import torch

from core import LLM
from core.api.errors import CoreError, UserError
from core_platforms.cpu import processors
from core_platforms.cpu.kernels import NativeKernels
from core_platforms.cpu.manifest import CpuArguments, core_load
from core_platforms.cpu.processors import default_threads, place, processor_list, quota
from core_runtime.weights.formats import Dense

USABLE = processors.usable_processors()


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of 4 cores with two processors each (0 with 4, 1 with 5, ...) and any quota."""

    def make(usable=range(8), cpu_max=None, version_1=None):
        for processor in range(8):
            topology = tmp_path / f"devices/system/cpu/cpu{processor}/topology"
            topology.mkdir(parents=True, exist_ok=True)
            (topology / "thread_siblings_list").write_text(f"{processor % 4},{processor % 4 + 4}\n")
        group = tmp_path / "fs/cgroup/cpu"
        group.mkdir(parents=True, exist_ok=True)
        if cpu_max is not None:
            (group.parent / "cpu.max").write_text(cpu_max)
        if version_1 is not None:
            (group / "cpu.cfs_quota_us").write_text(str(version_1))
            (group / "cpu.cfs_period_us").write_text("100000")
        monkeypatch.setattr(processors, "SYSTEM", tmp_path)
        monkeypatch.setattr(processors, "MEMBERSHIP", tmp_path / "membership")
        monkeypatch.setattr(processors, "usable_processors", lambda: sorted(usable))

    return make


@pytest.mark.parametrize(
    ("usable", "cpu_max", "version_1", "threads"),
    [
        (range(8), None, None, 4),
        ([2, 6], None, None, 1),
        ([1, 2, 5, 7], None, None, 3),
        (range(8), "max 100000\n", None, 4),
        (range(8), "240000 100000\n", None, 2),
        (range(8), "250000 100000\n", None, 3),
        (range(8), "50000 100000\n", None, 1),
        (range(8), None, -1, 4),
        (range(8), None, 300000, 3),
    ],
)
def test_a_thread_for_each_core_within_the_quota(machine, usable, cpu_max, version_1, threads):
    machine(usable, cpu_max, version_1)
    assert default_threads() == threads
    assert place(None, "none") == (threads, ())
    assert place(6, "none") == (6, ())


def test_this_machine_gets_a_sensible_default():
    assert 1 <= default_threads() <= len(USABLE)
    assert quota() is None or quota() > 0


def test_binding_takes_cores_first_or_what_is_named(machine):
    machine()
    assert place(None, "auto") == (4, (0, 1, 2, 3))
    assert place(6, "auto") == (6, (0, 1, 2, 3, 4, 5))
    assert place(9, "auto") == (9, ())  # more threads than processors: the system shares them out
    assert place(None, "4-6,1") == (4, (4, 5, 6, 1))
    assert place(2, "3,2,1") == (2, (3, 2))
    machine([1, 2, 5, 7])
    assert place(None, "auto") == (3, (1, 2, 7))


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "0-", "-1", "1,1", "0-3,2", "1;2"])
def test_a_list_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="expected none, auto, or processors such as 0-3,8"):
        processor_list(text)


def test_impossible_bindings_are_refused(machine):
    machine([0, 1])
    with pytest.raises(UserError, match="may not use processor 2"):
        place(None, "0-2")
    with pytest.raises(UserError, match="names 1 processors for 2 threads"):
        place(2, "1")


def test_problems_are_found_before_anything_is_loaded(tiny_llama):
    with pytest.raises(CoreError, match="thread_binding 'x' is not understood"):
        LLM(model=str(tiny_llama), platform_config={"thread_binding": "x"})


def open_platform(native, **arguments):
    class Context:
        pass

    context = Context()
    context.arguments = CpuArguments(**arguments)
    platform = core_load(context)
    kernels = NativeKernels(platform.num_threads)
    return platform.open("cpu", [kernels]), kernels


def bound_threads():
    """The processors of each thread of the pool, by /proc."""
    found = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as comm:
            if comm.read().strip() == "core-compute":
                found.append(os.sched_getaffinity(int(task)))
    return found


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux")
def test_threads_are_bound_and_the_caller_is_freed_again(native):
    last = USABLE[-1]
    runtime, _ = open_platform(native, threads=1, thread_binding=str(last))
    assert os.sched_getaffinity(0) == {last} and native.pool_size() == 1
    runtime.close()
    assert sorted(os.sched_getaffinity(0)) == USABLE
    if len(USABLE) < 2:
        pytest.skip("needs two processors")
    runtime, _ = open_platform(native, thread_binding=f"{last},{USABLE[0]}")
    assert os.sched_getaffinity(0) == {last} and bound_threads() == [{USABLE[0]}]
    runtime.close()
    assert sorted(os.sched_getaffinity(0)) == USABLE and bound_threads() == [set(USABLE)]


@pytest.mark.parametrize("spin", [0, 30, 1000])
@pytest.mark.parametrize("threads", [1, 2, 3, 40])
def test_any_number_of_threads_finishes_every_tile(native, spin, threads):
    runtime, kernels = open_platform(native, threads=threads, spin_microseconds=spin)
    assert native.pool_size() == threads
    weight = Dense(torch.randn(320, 64))
    x, out = torch.randn(200, 64), torch.empty(200, 320)
    linear = kernels.linear(weight, activation="none")
    for _ in range(20):
        out.zero_()
        linear(x, out)
        torch.testing.assert_close(out, x @ weight.weight.T, atol=1e-4, rtol=1e-4)
    runtime.close()
    native.pool_spin(30)
    native.pool_init(2)


def test_one_thread_means_no_thread_of_ours(native):
    runtime, _ = open_platform(native, threads=1)
    assert native.pool_size() == 1 and not bound_threads()
    runtime.close()
    native.pool_init(2)
