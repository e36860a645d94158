"""The communicator in shared memory: sums, gathers, messages, and ranks that give up, end or say nothing. Ranks are threads."""

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from core_platforms.cpu.kernels import NativeKernels
from core_platforms.cpu.ranks import SharedCommunicator, SharedGroup, group_bytes
from core_platforms.cpu.tape import record

LIMIT_S = 60
SLOT = 1 << 14


class Threads:
    """Ranks of one group, each with a thread of its own."""

    def __init__(self, size: int, slot: int = SLOT) -> None:
        memory = os.memfd_create("test-ranks")
        os.ftruncate(memory, group_bytes(size, slot))
        self.groups = [SharedGroup(memory, rank, size, slot) for rank in range(size)]
        os.close(memory)
        self.command = 0
        self._pool = ThreadPoolExecutor(size)

    def run(self, work, *, begin: bool = True):
        """Call work(group) on every rank, in one command; returns the results or exceptions."""
        self.command += begin

        def one(group: SharedGroup):
            if begin:
                group.begin(self.command)
            try:
                return work(group)
            except Exception as error:
                return error

        running = [self._pool.submit(one, group) for group in self.groups]
        return [each.result(LIMIT_S) for each in running]


def tree(parts: list[torch.Tensor]) -> torch.Tensor:
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1
    return tree(parts[:half]) + tree(parts[half:])


def numbers(size: int, *shape: int) -> list[torch.Tensor]:
    return list(torch.randn(size, *shape, generator=torch.Generator().manual_seed(size)) * 100)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("shape", [(1, 1), (1, 1024), (7, 640), (300, 96)])  # the last one is larger than a slot
def test_a_sum_is_added_as_a_tree(size: int, shape: tuple[int, int]) -> None:
    parts = numbers(size, *shape)

    def work(group: SharedGroup) -> torch.Tensor:
        x = parts[group.rank].clone()
        SharedCommunicator(group).all_reduce(x)
        return x

    assert all(torch.equal(x, tree(parts)) for x in Threads(size).run(work))


def test_eight_partial_sums_have_the_same_bits_in_any_number_of_ranks() -> None:
    segments = numbers(8, 5, 64)
    expected = tree(segments)
    for size in (1, 2, 4, 8):
        share = 8 // size
        own = [tree(segments[rank * share : (rank + 1) * share]) for rank in range(size)]

        def work(group: SharedGroup, own=own) -> torch.Tensor:
            x = own[group.rank].clone()
            SharedCommunicator(group).all_reduce(x)
            return x

        assert all(torch.equal(x, expected) for x in Threads(size).run(work))


@pytest.mark.parametrize("root", [None, 0, 2])
def test_parts_of_unequal_widths_are_gathered(root: int | None) -> None:
    whole = torch.randn(40, 200)
    bounds = [0, 67, 134, 200]

    def work(group: SharedGroup) -> torch.Tensor:
        out = torch.zeros(40, 200)
        start, stop = bounds[group.rank : group.rank + 2]
        SharedCommunicator(group).all_gather(whole[:, start:stop].contiguous(), out, start, root)
        return out

    for rank, out in enumerate(Threads(3).run(work)):
        assert torch.equal(out, whole) == (root in (None, rank))


def test_scattered_and_exchanged_parts() -> None:
    parts = numbers(4, 8, 32)

    def work(group: SharedGroup) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        communicator = SharedCommunicator(group)
        scattered, exchanged = torch.empty(2, 32), torch.empty(8, 32)
        communicator.reduce_scatter(parts[group.rank].clone(), scattered)
        communicator.all_to_all(parts[group.rank], exchanged)
        told = parts[group.rank].clone()
        communicator.broadcast(told, 1)
        return scattered, exchanged, told

    for rank, (scattered, exchanged, told) in enumerate(Threads(4).run(work)):
        mine = slice(2 * rank, 2 * rank + 2)
        assert torch.equal(scattered, tree(parts)[mine])
        assert torch.equal(exchanged, torch.cat([part[mine] for part in parts]))
        assert torch.equal(told, parts[1])


def test_bytes_of_any_length_are_shared() -> None:
    said = [b"", b"a", os.urandom(3 * SLOT + 5)]
    found = Threads(3).run(lambda group: [group.share(data if group.rank == 0 else b"") for data in said])
    assert found == [said] * 3
    assert (
        Threads(3).run(lambda group: group.exchange(bytes([group.rank] * SLOT)))
        == [[bytes([rank] * SLOT) for rank in range(3)]] * 3
    )


def test_operations_in_any_order_never_mix_up_their_numbers() -> None:
    seeds = random.Random(5)
    order = [(seeds.choice(["sum", "gather", "share", "barrier"]), seeds.randrange(1, 90)) for _ in range(400)]

    def work(group: SharedGroup) -> list[bool]:
        communicator, lazy = SharedCommunicator(group), random.Random(group.rank)
        good = []
        for number, (kind, rows) in enumerate(order):
            if lazy.random() < 0.02:
                time.sleep(0.002)  # long enough for others to go to sleep
            if kind == "sum":
                x = torch.full((rows, 50), float(number + group.rank))
                communicator.all_reduce(x)
                good.append(bool((x == 3 * number + 3).all()))
            elif kind == "gather":
                out = torch.zeros(rows, 30)
                communicator.all_gather(torch.full((rows, 10), float(number)), out, 10 * group.rank, number % 3)
                good.append(group.rank != number % 3 or bool((out == number).all()))
            elif kind == "share":
                good.append(group.share(bytes([rows]) * rows, number % 3) == bytes([rows]) * rows)
            else:
                group.barrier()
        return good

    assert all(all(good) for good in Threads(3).run(work))


def test_a_rank_that_gives_up_releases_the_others_and_all_agree_again() -> None:
    threads = Threads(3)
    for failing in range(3):

        def work(group: SharedGroup, failing=failing) -> None:
            x = torch.ones(1, 8)
            for turn in range(5):
                if group.rank == failing and turn == 3:
                    group.abort()
                    raise ValueError("mine")
                SharedCommunicator(group).all_reduce(x)
            group.barrier()

        errors = threads.run(work)
        assert [type(error) for error in errors] == [ValueError if r == failing else RuntimeError for r in range(3)]
        assert all("gave this step up" in str(error) for r, error in enumerate(errors) if r != failing)
        assert threads.run(lambda group: group.exchange(bytes([group.rank]))) == [[b"\0", b"\1", b"\2"]] * 3


def test_a_broken_group_ends_every_wait() -> None:
    threads = Threads(2)
    first, second = threads.groups
    waiting = ThreadPoolExecutor(1).submit(second.read, 1)  # waits for ever by itself
    first.begin(1)
    barrier = ThreadPoolExecutor(1).submit(first.barrier)
    time.sleep(0.05)
    assert not waiting.done() and not barrier.done()
    second.end()
    for future in (waiting, barrier):
        with pytest.raises(RuntimeError, match="the ranks have ended"):
            future.result(LIMIT_S)
    with pytest.raises(RuntimeError, match="the ranks have ended"):
        first.barrier()


def test_a_silent_rank_is_named() -> None:
    group, *_ = Threads(3).groups
    group.set_patience(0.05)
    group.begin(1)
    with pytest.raises(TimeoutError):
        group.barrier()
    assert group.late in (1, 2)


def test_sums_and_gathers_are_recorded() -> None:
    NativeKernels(1)
    parts = torch.randn(2, 6, 32)
    done = threading.Barrier(2, timeout=LIMIT_S)

    def work(group: SharedGroup) -> list[torch.Tensor]:
        communicator = SharedCommunicator(group)
        x, out = torch.zeros(6, 32), torch.zeros(6, 64)

        def calls() -> None:
            communicator.all_reduce(x)
            communicator.all_gather(x, out, 32 * group.rank)

        if group.rank == 1:  # one recording at a time in a process: this rank calls what the other one replays
            for rows in (6, 3, 6):
                x[:rows] = parts[1, :rows]
                communicator.all_reduce(x[:rows])
                communicator.all_gather(x[:rows], out[:rows], 32)
                done.wait()
            return []
        found = []
        x[:] = parts[0]
        tape = record(calls, 6, 1)
        done.wait()
        for rows in (3, 6):
            x[:rows] = parts[0, :rows]
            tape(rows, 1)
            found.append(out[:rows].clone())
            done.wait()
        return found

    found, _ = Threads(2).run(work)
    both = parts[0] + parts[1]
    assert torch.equal(found[0], torch.cat([both, both], 1)[:3]) and torch.equal(found[1], torch.cat([both, both], 1))


def test_a_stream_carries_messages_longer_than_itself() -> None:
    threads = Threads(3)
    sizes = [*np.random.default_rng(1).integers(1, 200_000, 60).tolist(), 3 << 20]
    sent = [os.urandom(size) for size in sizes]

    def work(group: SharedGroup) -> list[bytes]:
        if group.rank == 0:
            for data in sent:
                group.write(data)
            return sent
        return [group.read(size) for size in sizes]

    assert all(found == sent for found in threads.run(work))


@pytest.mark.parametrize("bad", [torch.ones(2, 8, dtype=torch.float64), torch.ones(8, 2).T])
def test_other_tensors_are_refused(bad: torch.Tensor) -> None:
    group, *_ = Threads(1).groups
    group.begin(1)
    with pytest.raises((ValueError, TypeError)):
        SharedCommunicator(group).all_reduce(bad)
    with pytest.raises(ValueError, match="expected at most"):
        SharedCommunicator(group).all_reduce(torch.ones(1, SLOT))
