"""Speed and memory in `core diff`: turns of two sides, what follows from them, and servers that are timed."""

import asyncio
import json
import os
import random
from contextlib import contextmanager
from math import exp
from types import SimpleNamespace

import msgspec
import pytest

from core.api.errors import CoreError
from core.commands.main import main
from core_commands.client.host_memory import peak_bytes
from core_commands.client.server_process import ServerError
from core_commands.replay import side_by_side
from core_commands.replay.comparison import Comparison, Recorded
from core_commands.replay.report import as_html, as_json
from core_commands.replay.side_by_side import Plan, Running, measure, no_room
from core_commands.replay.speed import NO_LEFT, Speed, Turn, take_turns
from core_commands.replay.timed_server import TimedServer
from tests.receipts.stand_in import NUM_TOKENS, stand_in
from tests.receipts.test_diff_parts import RECORD

GIB = 1 << 30


class Machine:
    """A clock that two made-up sides share. drift: by which each second makes the next ones slower. log: who answered what."""

    def __init__(self, drift=0.0, noise=0.0):
        self.now = 0.0
        self.drift = drift
        self.noise = noise
        self.log = []
        self.chance = random.Random(1)

    def clock(self):
        return self.now


class MadeUp:
    """A side whose answers take a known time. fails: places that it never answers. peak: its bytes."""

    def __init__(self, name, machine, seconds, first, *, fails=(), peak=None, forgets=True, tokens=10):
        self.name = name
        self.machine = machine
        self.seconds = seconds
        self.first = first
        self.fails = fails
        self.peak = peak
        self.forgets = forgets
        self.tokens = tokens

    async def answer(self, places):
        machine = self.machine
        machine.log.append((self.name, tuple(places)))
        slower = (1 + machine.drift * machine.now) * machine.chance.lognormvariate(0, machine.noise)
        took = self.seconds * len(places) * slower
        machine.now += took
        good = [place for place in places if place not in self.fails]
        problems = [f"{self.name} refuses" for place in places if place in self.fails]
        return Turn(took, self.tokens * len(good), dict.fromkeys(good, self.first * slower), problems)

    async def forget(self):
        self.machine.log.append((self.name, "forgets" if self.forgets else "cannot forget"))
        return self.forgets

    def peak_bytes(self):
        return self.peak


def measured(left, right, count=100, seconds=1e9):
    return asyncio.run(take_turns(left, right, count, seconds, left.machine.clock))


def sides(machine, **right):
    fast = {"seconds": 0.05, "first": 0.01} | right
    return MadeUp("left", machine, 0.1, 0.03), MadeUp("right", machine, **fast)


def test_the_ratio_of_a_side_that_is_twice_as_fast_is_found_on_a_machine_that_slows_down_and_wanders():
    speed = measured(*sides(Machine(drift=0.02, noise=0.1)))
    assert exp(speed.rate.mean - speed.rate.half) < 2 < exp(speed.rate.mean + speed.rate.half)
    assert exp(speed.first.mean - speed.first.half) < 1 / 3 < exp(speed.first.mean + speed.first.half)
    assert speed.rate.half < 0.15 and speed.rate.num_pairs >= 12
    assert speed.rates["right"] > 1.5 * speed.rates["left"] and speed.firsts["right"] < 0.5 * speed.firsts["left"]


def test_equal_sides_are_told_as_equal():
    speed = measured(*sides(Machine(drift=0.05, noise=0.2), seconds=0.1, first=0.03))
    for effect in (speed.rate, speed.first):
        assert effect.mean - effect.half < 0 < effect.mean + effect.half


def test_sides_take_turns_on_the_same_requests_in_an_order_that_favours_none():
    machine = Machine()
    measured(*sides(machine), count=20)
    turns = [(name, places) for name, places in machine.log if isinstance(places, tuple)]
    assert turns[:2] == [("left", (18, 19)), ("right", (18, 19))]  # in vain
    first = [("left", (0, 1)), ("right", (0, 1)), ("right", (2, 3)), ("left", (2, 3)), ("left", (4, 5))]
    assert turns[2:7] == first
    for name in ("left", "right"):
        seen = [places for who, places in turns[2:] if who == name]
        assert (
            seen == [(place, place + 1) for place in range(0, 20, 2)] * 2
        )  # ten pairs a round, until there are enough


def test_prefixes_are_forgotten_before_each_round_or_kept_on_both_sides():
    machine = Machine()
    speed = measured(*sides(machine), count=8)
    assert [row for row in machine.log if row[1] == "forgets"] == [("right", "forgets"), ("left", "forgets")] * 2
    assert not speed.has_warm
    machine = Machine()
    speed = measured(*sides(machine, forgets=False), count=8)
    assert ("left", "forgets") not in machine.log
    assert speed.has_warm and ("prefixes", "cached from the second round on, since a server could not forget them") in (
        speed.lines()
    )


@pytest.mark.parametrize(("count", "seconds", "pairs"), [(1000, 0.0, 2), (1000, 10.0, 9), (1, 1e9, 16), (3, 1e9, 18)])
def test_turns_end_when_the_time_is_used_or_an_interval_has_enough_pairs(count, seconds, pairs):
    machine = Machine()
    speed = measured(*sides(machine), count=count, seconds=seconds)
    assert speed.rate.num_pairs == pairs


def test_a_pair_with_a_failed_request_does_not_count_and_is_told():
    speed = measured(*sides(Machine(), fails={0}), count=16)
    assert speed.num_failed == 2 and speed.problem == "right refuses"
    assert speed.rate.num_pairs == 14 and exp(speed.rate.mean) == pytest.approx(2)
    none = measured(*sides(Machine(), fails=set(range(16))), count=16)
    assert none.rate is None and none.reason == "all pairs failed: right refuses"
    silent = measured(*sides(Machine(), tokens=0), count=16)
    assert silent.reason == "no answer has a token"


def test_the_report_and_its_json_have_speed_memory_and_what_was_not_measured():
    machine = Machine()
    comparison = Comparison("l", "r")
    left, right = sides(machine)
    left.peak = 3 * GIB
    comparison.speed = measured(left, right)
    page = as_html(comparison).decode()
    assert "left 100.0, right 200.0; right beside left +100.0%" in page
    assert "left 30.0 ms, right 10.0 ms; right beside left -66.7%" in page
    assert "3,072 MiB" in page and "not measured: the server was not started by this command" in page
    told = msgspec.json.decode(as_json(comparison))["speed"]
    assert told["tokens_per_second"]["ratio"] == pytest.approx(2) and told["tokens_per_second"][
        "left"
    ] == pytest.approx(100)
    assert told["first_token_seconds"]["right"] == pytest.approx(0.01)
    assert told["peak_resident_bytes"] == {"left": 3 * GIB, "right": None}


def test_a_comparison_with_what_was_recorded_says_what_it_needs():
    comparison = Comparison("l", "r")
    assert comparison.speed.lines() == [("speed and memory", f"not measured: {NO_LEFT}")]
    assert msgspec.json.decode(as_json(comparison))["speed"]["reason"] == NO_LEFT


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
MESSAGES = Recorded(1, "/v1/messages", CHAT | {"model": "other"}, [[1]], [], [5])
REQUESTS = [
    Recorded(0, "/v1/chat/completions", CHAT | {"stream": False, "n": 2}, [[1]], [], [7]),
    MESSAGES,
    Recorded.of(2, RECORD),
    Recorded(3, "/v1/completions", {"prompt": "REFUSED"}, [[1]], [], [1]),
]


def asked(told, places, **options):
    async def run():
        server = TimedServer(told.url, REQUESTS, **options)
        try:
            await server.open()
            return await server.answer(places), await server.forget(), server.peak_bytes()
        finally:
            await server.close()

    return asyncio.run(run())


def test_a_server_is_timed_on_streams_of_every_recorded_api():
    with stand_in() as told:
        turn, forgot, peak = asked(told, [0, 1, 2], pid=os.getpid(), forgets=True)
    assert (turn.tokens, turn.problems) == (3 * NUM_TOKENS, [])
    assert sorted(turn.firsts) == [0, 1, 2] and all(0 < first <= turn.seconds for first in turn.firsts.values())
    assert forgot and peak > 1 << 20
    bodies = {json.dumps(body.get("messages", body.get("prompt"))): body for body in told.bodies}
    assert all(body["stream"] is True and body["model"] == "stand-in" for body in told.bodies)
    assert bodies['"a"']["seed"] == 1 and bodies['"a"']["stream_options"] == {"include_usage": True}


def test_refusals_broken_streams_and_servers_that_are_gone_are_problems_of_their_requests():
    with stand_in() as told:
        turn, forgot, peak = asked(told, [3, 2])
        assert (turn.problems, list(turn.firsts)) == (["it will not"], [2])
        # A server that ran before this command is never asked to drop what others may use.
        assert (forgot, peak, told.asked["/reset_prefix_cache"]) == (False, None, 0)
    with stand_in(breaks=True) as told:
        turn, _, _ = asked(told, [0, 1])
        assert turn.problems == ["The stream ended before the answer was whole."] * 2 and not turn.firsts
    with stand_in(forgets=False) as told:
        assert asked(told, [2], pid=os.getpid(), forgets=True)[1] is False
    with pytest.raises(CoreError, match="no connection"):
        asked(told, [2])


def test_both_sides_are_measured_as_servers(monkeypatch):
    started = []
    with stand_in() as left, stand_in() as right:

        @contextmanager
        def own_process(values, directory, number, seconds):
            started.append((values["name"], number))
            yield (left if values["name"] == "left" else right).url, os.getpid()

        monkeypatch.setattr(side_by_side, "own_process", own_process)
        plans = {name: Plan({"name": name}, 1, "cpu") for name in ("left", "right")}
        speed = measure(plans, None, REQUESTS[:3], 0.001)
        assert not speed.reason and set(speed.peaks) == {"left", "right"}
        assert started == [("left", 0), ("right", 1)]
        speed = measure({"left": plans["left"]}, Running(right.url), REQUESTS[:3], 0.001)
        assert speed.rate is not None and set(speed.peaks) == {"left"}


def test_what_cannot_be_measured_costs_no_comparison(monkeypatch):
    @contextmanager
    def own_process(values, directory, number, seconds):
        raise ServerError("its process ended")
        yield

    monkeypatch.setattr(side_by_side, "own_process", own_process)
    plans = {"left": Plan({}, 1, "cpu"), "right": Plan({}, 1, "cpu")}
    assert measure(plans, None, REQUESTS, 1.0).reason == "the left server does not start: its process ended"
    assert measure(plans, None, REQUESTS, 0.0).reason == "--speed-seconds is 0"


@pytest.mark.parametrize(
    ("devices", "free", "sentence"),
    [
        (("cpu", "cpu"), 10 * GIB, ""),
        (("cpu", "cpu"), 8 * GIB, "the sides plan 8.0 GiB together, and 7.2 GiB"),
        (("cpu", "cpu"), None, ""),
        (("cuda", "cuda"), 1, "two engines would have to share the device cuda"),
        (("cuda",), 1, ""),
        (("cpu",), 4 * GIB, "the sides plan 4.0 GiB together"),
    ],
)
def test_two_engines_start_only_where_both_fit(devices, free, sentence, monkeypatch):
    monkeypatch.setattr(side_by_side, "available_bytes", lambda: free)
    plans = {name: Plan({}, 4 * GIB, device) for name, device in zip(("left", "right"), devices, strict=False)}
    assert no_room(plans).startswith(sentence) and bool(no_room(plans)) is bool(sentence)


def test_the_peak_of_a_process_counts_those_that_it_started(tmp_path, monkeypatch):
    for pid, (children, size) in {1: ("2 3", 10), 2: ("", 20), 3: ("4", 30), 5: ("", 1000)}.items():
        task = tmp_path / str(pid) / "task" / str(pid)
        task.mkdir(parents=True)
        (task / "children").write_text(children)
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nVmHWM:\t{size} kB\n")
    monkeypatch.setattr("core_commands.client.host_memory.PROC", tmp_path)
    assert peak_bytes(1) == 60 * 1024  # 4 has ended, 5 is not among them
    assert peak_bytes(9) is None


def test_a_command_measures_what_it_compares_and_can_leave_it_out(monkeypatch, tmp_path, capsys):
    """The words of the command, with engines that are stand-ins."""
    from core_commands.cli import diff
    from core_commands.replay import engine

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(diff, "_records", lambda source, options: REQUESTS[:3])
    monkeypatch.setattr(engine, "run_replay", lambda parsed, work: 0)
    monkeypatch.setattr(diff, "parse_engine_arguments", lambda words: SimpleNamespace(values={"w": words}, problems=[]))
    monkeypatch.setattr(Plan, "of", lambda parsed: parsed.values["w"][0])
    calls = []

    def measure(plans, right, records, seconds):
        calls.append((plans, right, seconds))
        return Speed(reason="a test")

    monkeypatch.setattr(side_by_side, "measure", measure)
    assert main(["diff", "D", "--left", "a", "--right", "b", "--json", "out.json"]) == 0
    assert calls == [({"left": "a", "right": "b"}, None, 60.0)]
    assert "speed and memory: not measured: a test" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["speed"]["reason"] == "a test"
    assert main(["diff", "D", "--left", "a", "--right", "b", "--speed-seconds", "0"]) == 0
    assert main(["diff", "D", "--right", "b", "--speed-seconds", "5"]) == 0
    assert len(calls) == 1
