"""The share of the machine: quotas of control groups, and compute threads that follow them while they compute."""

import threading
import time

import pytest
import torch

from core_platforms.cpu import follower, processors, received
from core_platforms.cpu.control_group import quota
from core_platforms.cpu.follower import Follower
from core_platforms.cpu.kernels import NativeKernels
from core_platforms.cpu.received import Account, held_back
from core_runtime.weights.formats import Dense


@pytest.fixture
def system(tmp_path):
    """A sysfs with the given files of control groups."""

    def make(files):
        for name, text in files.items():
            path = tmp_path / "fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def version_1(folder, microseconds):
    return {f"{folder}/cpu.cfs_quota_us": f"{microseconds}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("files", "membership", "processors_worth"),
    [
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"cpu.max": "150000 100000\n"}, "0::/host/path/that/is/not/here\n", 1.5),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, "0::/a/b\n", 0.5),
        ({"a/cpu.max": "30000 100000\n", "cpu.max": "50000 100000\n"}, "0::/a\n", 0.3),
        ({"a/cpu.max": "50000 100000\n"}, "0::/other\n", None),
        ({"cpu.max": "200000 100000\n"}, "0::/../outside\n", 2.0),
        (version_1("cpu", 50000), "1:cpu:/\n0::/\n", 0.5),
        (version_1("cpu/box", 70000), "4:memory:/x\n1:cpu:/box/inner\n", 0.7),
        (version_1("cpu,cpuacct/box", 70000), "2:cpu,cpuacct:/box\n", 0.7),
        (version_1("cpu", -1), "1:cpu:/\n", None),
        (version_1("cpu", 50000), "", 0.5),
        ({"unified/a/cpu.max": "50000 100000\n"}, "0::/a\n", 0.5),
        ({"cpu.max": "nonsense\n"}, "0::/\n", None),
        ({"cpu.max": "1000 0\n"}, "0::/\n", None),
    ],
)
def test_the_tightest_of_the_groups_around_a_process_counts(system, files, membership, processors_worth):
    assert quota(system(files), membership) == processors_worth


class Pool:
    """The extension's pool, as far as its size goes."""

    def __init__(self, size):
        self.size = size

    def pool_init(self, size):
        self.size = size
        return size


@pytest.fixture
def machine(monkeypatch, system):
    """Eight processors; the quota may be set again and again, as a container's may."""
    monkeypatch.setattr(processors, "usable_processors", lambda: list(range(8)))
    monkeypatch.setattr(processors, "MEMBERSHIP", system({}) / "membership")
    monkeypatch.setattr(processors, "SYSTEM", system({}))
    monkeypatch.setattr(follower, "account", lambda ids, usable: Account())
    return lambda text: system({"cpu.max": text})


def test_threads_follow_a_quota_that_changes_and_leave_other_sizes_alone(machine):
    machine("max 100000")
    pool = Pool(8)
    follow = Follower(pool, 8, 0)
    sizes = []
    for text in ("max 100000", "200000 100000", "200000 100000", "50000 100000", "150000 100000", "max 100000"):
        machine(text)
        follow.look()
        sizes.append(pool.size)
    assert sizes == [8, 2, 2, 1, 2, 8]
    pool.size = 3  # somebody else's wish
    follow.look()
    assert pool.size == 3


def test_threads_that_are_held_back_beside_idle_processors_become_fewer_and_are_tried_again(machine, monkeypatch):
    machine("max 100000")
    clock, spent = [99.0], [Account()]
    totals = [Account()]

    def account(ids, usable):
        more = spent[0]
        totals[0] = Account(totals[0].ran + more.ran, totals[0].waited + more.waited, totals[0].idle + more.idle)
        return totals[0]

    monkeypatch.setattr(follower, "account", account)
    monkeypatch.setattr(follower.time, "monotonic", lambda: clock[0])
    pool = Pool(8)
    follow = Follower(pool, 8, 0)
    follow.look()
    clock[0], spent[0] = 100.0, Account(ran=2.0, waited=6.0, idle=6.0)
    follow.look()
    assert pool.size == 2
    spent[0] = Account(ran=2.0, waited=0.1, idle=6.0)
    clock[0] += 1
    follow.look()
    assert pool.size == 2
    clock[0] += follower.FIRST_RETRY_S
    follow.look()
    assert pool.size == 8
    spent[0] = Account(ran=2.0, waited=6.0, idle=6.0)  # again, so that the next try comes later
    clock[0] += 1
    follow.look()
    assert pool.size == 2
    spent[0] = Account(ran=2.0, waited=0.1, idle=6.0)
    clock[0] += follower.FIRST_RETRY_S
    follow.look()
    assert pool.size == 2
    clock[0] += follower.FIRST_RETRY_S
    follow.look()
    assert pool.size == 8


@pytest.mark.parametrize(
    ("spent", "got"),
    [
        (Account(ran=2.0, waited=6.0, idle=6.0), 2.0),  # a quota that cannot be read
        (Account(ran=4.0, waited=4.0, idle=0.1), None),  # other programs: fewer threads would get less
        (Account(ran=7.9, waited=0.1, idle=0.0), None),
        (Account(ran=0.01, waited=0.2, idle=7.0), None),  # nothing to do
    ],
)
def test_only_a_quota_takes_threads_away(spent, got):
    assert held_back(spent, 1.0) == got


def test_the_system_says_what_a_thread_ran():
    before = received.account([threading.get_native_id()], processors.usable_processors())
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    spent = received.account([threading.get_native_id()], processors.usable_processors()).since(before)
    assert 0.03 < spent.ran < 1.0 and spent.waited >= 0 and spent.idle >= 0
    assert received.account([0], []) == Account()  # no such thread


def test_results_do_not_change_when_the_pool_does_while_it_computes(native):
    kernels = NativeKernels(2)
    generator = torch.Generator().manual_seed(1)
    linear = kernels.linear(Dense(torch.randn(640, 256, generator=generator)), activation="none")
    inputs = [torch.randn(rows, 256, generator=generator) for rows in (1, 7, 200)]
    expected = [torch.empty(x.shape[0], 640) for x in inputs]
    for x, out in zip(inputs, expected, strict=True):
        linear(x, out)
    ended = threading.Event()

    def resize():
        size = 1
        while not ended.wait(0.001):
            size = size % 5 + 1
            native.pool_init(size)

    other = threading.Thread(target=resize)
    other.start()
    try:
        for _ in range(40):
            for x, out in zip(inputs, expected, strict=True):
                found = torch.full_like(out, float("nan"))
                linear(x, found)
                assert torch.equal(found, out)
    finally:
        ended.set()
        other.join()
        native.pool_init(2)
