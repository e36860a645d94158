"""Groups of ranks on several hosts: the same numbers as on one, and ranks that give up, end or say nothing.

Ranks are threads, and hosts are memories of their own with sockets on the loopback interface.
"""

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from core.api.errors import UserError
from core_distributed.hosts.communicator import SpanningCommunicator, SpanningLink
from core_distributed.hosts.meeting import Meeting
from core_distributed.hosts.spanning import SpanningGroup
from core_distributed.layout import Groups, Layout, layout_bytes, num_wires
from core_platforms.cpu.ranks import SharedCommunicator
from tests.apis.serving_processes import free_port, free_ports
from tests.ranks.test_communicator import SLOT, numbers, tree

LIMIT_S = 60


class Hosts:
    """All ranks of a layout, each with a thread of its own."""

    def __init__(self, layout: Layout, key: Path | None = None) -> None:
        self.layout = layout
        key_file = None if key is None else str(key)
        meeting = Meeting(["127.0.0.1"] * layout.hosts, free_ports(num_wires(layout)), os.urandom(8), key_file)
        memories = []
        for host in range(layout.hosts):
            memories.append(os.memfd_create(f"host-{host}"))
            os.ftruncate(memories[-1], layout_bytes(layout, SLOT, host))
        self.all = [Groups(memories[layout.host_of(r)], r, layout, SLOT, meeting) for r in range(layout.size)]
        for memory in memories:
            os.close(memory)
        self.command = 0
        self._pool = ThreadPoolExecutor(layout.size)

    def run(self, work, which="world"):
        """Call work(group) on every rank, in one command; returns the results or exceptions."""
        self.command += 1

        def one(groups: Groups):
            group = getattr(groups, which)
            group.begin(self.command)
            try:
                return work(group)
            except Exception as error:
                return error

        running = [self._pool.submit(one, groups) for groups in self.all]
        return [each.result(LIMIT_S) for each in running]

    def close(self) -> None:
        for groups in self.all:
            groups.end()
            groups.close(0.0)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "key"
    path.write_text("a secret of more than thirty-two characters")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module", params=[(2, 1, 2), (4, 1, 2), (3, 1, 3)], ids=["1+1", "2+2", "1+1+1"])
def hosts(request: pytest.FixtureRequest, key: Path) -> Iterator[Hosts]:
    hosts = Hosts(Layout(*request.param), key)
    yield hosts
    hosts.close()


def communicator(group):
    return SpanningCommunicator(group) if isinstance(group, SpanningGroup) else SharedCommunicator(group)


@pytest.mark.parametrize("shape", [(1, 1), (7, 640), (300, 96)])
def test_a_sum_has_the_bits_of_one_host(hosts: Hosts, shape: tuple[int, int]) -> None:
    parts = numbers(hosts.layout.size, *shape)

    def work(group) -> torch.Tensor:
        padded = torch.zeros(shape[0], shape[1] + 3)
        x = padded[:, : shape[1]]  # rows apart, as in a buffer
        x.copy_(parts[group.rank])
        communicator(group).all_reduce(x)
        return x.clone()

    assert all(torch.equal(x, tree(parts)) for x in hosts.run(work))


def test_operations_in_any_order_never_mix_up_their_numbers(hosts: Hosts) -> None:
    seeds, size = random.Random(5), hosts.layout.size
    kinds = ["sum", "gather", "scatter", "all", "share", "exchange", "barrier"]
    order = [(seeds.choice(kinds), seeds.randrange(1, 40)) for _ in range(120)]

    def work(group) -> list[bool]:
        ours, lazy, good = communicator(group), random.Random(group.rank), []
        for number, (kind, rows) in enumerate(order):
            if lazy.random() < 0.05:
                time.sleep(0.002)
            root = number % size
            if kind == "sum":
                x = torch.full((rows, 50), float(number + group.rank))
                ours.all_reduce(x)
                good.append(bool((x == size * number + sum(range(size))).all()))
            elif kind == "gather":
                goal = (None, 0, root)[number % 3]
                out = torch.zeros(rows, 10 * size)
                ours.all_gather(torch.full((rows, 10), float(number)), out, 10 * group.rank, goal)
                good.append(goal not in (None, group.rank) or bool((out == number).all()))
            elif kind == "scatter":
                out = torch.empty(rows, 5)
                ours.reduce_scatter(torch.full((rows * size, 5), float(number)), out)
                good.append(bool((out == size * number).all()))
            elif kind == "all":
                out = torch.empty(size, 8)
                ours.all_to_all(torch.full((size, 8), float(group.rank)), out)
                good.append(out[:, 0].tolist() == list(range(size)))
            elif kind == "share":
                sent = bytes([rows]) * (rows - 1)
                good.append(group.share(sent if group.rank == root else b"", root) == sent)
            elif kind == "exchange":
                good.append(group.exchange(bytes([group.rank] * rows)) == [bytes([r] * rows) for r in range(size)])
            else:
                group.barrier()
        return good

    assert all(all(good) for good in hosts.run(work))


def test_a_rank_that_gives_up_releases_all_others_and_all_agree_again(hosts: Hosts) -> None:
    for failing in range(hosts.layout.size):

        def work(group, failing=failing) -> None:
            x = torch.ones(1, 8)
            for turn in range(4):
                if group.rank == failing and turn == 2:
                    group.abort()
                    raise ValueError("mine")
                communicator(group).all_reduce(x)
            group.barrier()

        errors = hosts.run(work)
        expected = [ValueError if rank == failing else RuntimeError for rank in range(hosts.layout.size)]
        assert [type(error) for error in errors] == expected
        assert all("gave this step up" in str(error) for r, error in enumerate(errors) if r != failing)
        found = hosts.run(lambda group: group.exchange(bytes([group.rank])))
        assert found == [[bytes([rank]) for rank in range(hosts.layout.size)]] * hosts.layout.size


def test_a_stream_carries_messages_longer_than_itself(hosts: Hosts) -> None:
    sent = [os.urandom(size) for size in (1, 70_000, 3, 3 << 20)]

    def work(group) -> list[bytes]:
        if group.rank == 0:
            for data in sent:
                group.write(data)
            return sent
        return [group.read(len(data)) for data in sent]

    assert all(found == sent for found in hosts.run(work))


def test_a_silent_host_is_named(hosts: Hosts) -> None:
    first = hosts.all[0]
    first.set_patience(0.1, 0)

    def work(group) -> None:
        if group.rank == 0:
            communicator(group).all_reduce(torch.ones(1, 4))

    hosts.command += 1
    first.world.begin(hosts.command)
    with pytest.raises(TimeoutError):
        work(first.world)
    assert first.late in range(1, hosts.layout.size)
    first.set_patience(0, 0)
    first.world.abort()
    hosts.run(lambda group: group.barrier())


def test_stages_on_hosts_of_their_own(key: Path) -> None:
    hosts = Hosts(Layout(2, 2, 4), key)
    stream = [torch.randn(3, 5, dtype=torch.float32), torch.arange(2)]

    def sums(group) -> torch.Tensor:
        x = torch.full((2, 3), float(group.rank + 1))
        communicator(group).all_reduce(x)
        return x

    assert all((x == 3).all() for x in hosts.run(sums, "stage"))

    def passed(groups: Groups) -> bool:
        if groups.after is not None:
            for x in stream:
                SpanningLink(groups.after).send(x)
            return True
        found = [torch.empty_like(x) for x in stream]
        for x in found:
            SpanningLink(groups.before).recv(x)
        return all(map(torch.equal, found, stream))

    assert all(ThreadPoolExecutor(4).map(passed, hosts.all))
    hosts.close()


def test_a_broken_group_ends_every_wait_and_leaves_no_port(key: Path) -> None:
    hosts = Hosts(Layout(2, 1, 2), key)
    first, second = (groups.world for groups in hosts.all)
    reading = ThreadPoolExecutor(1).submit(second.read, 1)
    first.begin(1)
    barrier = ThreadPoolExecutor(1).submit(first.barrier)
    time.sleep(0.05)
    assert not reading.done() and not barrier.done()
    first.end()
    second.end()
    for future in (reading, barrier):
        with pytest.raises(RuntimeError, match="the ranks have ended"):
            future.result(LIMIT_S)
    before = threading.active_count()
    hosts.close()
    assert threading.active_count() < before  # the threads that check keys


def test_another_key_is_not_heard(key: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("b secret of more than thirty-two characters")
    other.chmod(0o600)
    layout, port = Layout(2, 1, 2), free_port()
    memory = os.memfd_create("hosts")
    os.ftruncate(memory, layout_bytes(layout, SLOT))
    session = os.urandom(8)
    ends = [
        Groups(memory, rank, layout, SLOT, Meeting(["127.0.0.1"] * 2, port, session, str(path)))
        for rank, path in enumerate((key, other))
    ]
    for end in ends:
        end.set_patience(0.4, 0)
        end.world.begin(1)
    with ThreadPoolExecutor(2) as pool:
        for waiting in [pool.submit(end.world.barrier) for end in ends]:
            with pytest.raises(TimeoutError):
                waiting.result(LIMIT_S)
    with pytest.raises(UserError, match="cannot be used"):
        Groups(memory, 0, layout, SLOT, Meeting(["192.0.2.1"] * 2, port, session, str(key)))
    for end in ends:
        end.close(0.0)
    os.close(memory)
