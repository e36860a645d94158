"""Whose turn it is, on a clock of its own: random arrivals, answers and changes of models."""

from __future__ import annotations

import random

import pytest

from core_commands.several.turns import Change, Seat, Turns

MB = 1 << 20


class Machine:
    """Models whose changes and answers take a given time; every step checks what must always hold."""

    def __init__(self, seats, budget, turn=5.0, change_s=0.5):
        self.now = 0.0
        self.turns = Turns(seats, budget, turn, lambda: self.now)
        self.change_s = change_s
        self.events = []  # (time, order, function)
        self.admitted = {}  # number of a request: seconds that it waited
        self.arrived = {}
        self.order = 0

    def at(self, time, function):
        self.order += 1
        self.events.append((time, self.order, function))

    def ask(self, time, name, takes, keep_alive=None):
        number = len(self.arrived)
        self.arrived[number] = time
        seat = self.turns.seats[name]

        def admit():
            assert seat.state == "awake"
            self.admitted[number] = self.now - time
            self.at(self.now + takes, lambda: self.turns.leave(seat, keep_alive))

        self.at(time, lambda: self.turns.enter(seat, admit))
        return number

    def change(self, change: Change):
        seat = change.seat
        if change.kind == "sleep":
            assert not seat.running, "a model in use is put to sleep"
            assert not seat.pinned
            seat.state = "falling asleep"
        else:
            seat.state = "waking" if seat.state == "asleep" else "starting"
            assert self.turns.used <= self.turns.budget, "the budget is exceeded"
        state = "asleep" if change.kind == "sleep" else "awake"
        self.at(self.now + self.change_s, lambda: self.turns.settle(seat, state))

    def run(self, until=1e9):
        while True:
            while (change := self.turns.decide()) is not None:
                self.change(change)
            times = [time for time, _, _ in self.events]
            wake = self.turns.next_time()
            if wake is not None and wake > self.now:
                times.append(wake)
            if not times or min(times) > until:
                return
            self.now = max(self.now, min(times))
            for event in sorted(event for event in self.events if event[0] <= self.now):
                self.events.remove(event)
                event[2]()


def test_models_that_fit_are_awake_together():
    machine = Machine([Seat("a", 400 * MB), Seat("b", 500 * MB)], 1000 * MB)
    machine.ask(0.0, "a", 1.0)
    machine.ask(0.0, "b", 1.0)
    machine.run()
    assert {seat.state for seat in machine.turns.seats.values()} == {"awake"}
    assert machine.turns.used == 900 * MB


def test_the_model_unused_for_longest_gives_its_memory():
    seats = [Seat(name, 400 * MB) for name in "abc"]
    machine = Machine(seats, 1000 * MB)
    for time, name in ((0.0, "a"), (3.0, "b"), (6.0, "c")):
        machine.ask(time, name, 0.5)
    machine.run()
    assert [seat.state for seat in seats] == ["asleep", "awake", "awake"]


def test_a_model_in_use_keeps_its_memory_for_its_turn_and_then_takes_no_new_requests():
    machine = Machine([Seat("a", 600 * MB), Seat("b", 600 * MB)], 1000 * MB, turn=5.0)
    for second in range(60):
        machine.ask(0.5 * second, "a", 2.0)  # it is never idle by itself
    other = machine.ask(1.0, "b", 1.0)
    machine.run()
    # its turn of 5 s from 0.5 s on, the 2 s of the last request, and two changes of 0.5 s
    assert 4.5 <= machine.admitted[other] <= 5.0 + 2.0 + 1.0
    assert len(machine.admitted) == 61


def test_changes_take_at_most_a_fifth_of_the_time():
    machine = Machine([Seat("a", 600 * MB), Seat("b", 600 * MB)], 1000 * MB, turn=0.0, change_s=2.0)
    for seat in machine.turns.seats.values():
        seat.change_s = 4.0
    changes = []
    settle = machine.turns.settle
    machine.turns.settle = lambda seat, state: (changes.append(machine.now), settle(seat, state))
    for second in range(400):
        machine.ask(float(second), "a", 1.0)
        machine.ask(float(second), "b", 1.0)
    machine.run()
    assert len(machine.admitted) == 800
    assert len(changes) * machine.change_s <= 0.2 * machine.now + 2 * machine.change_s


def test_keep_alive_and_idle_timeouts():
    seats = [Seat("a", 100 * MB, idle_timeout=10.0), Seat("b", 100 * MB), Seat("c", 100 * MB, idle_timeout=10.0)]
    machine = Machine(seats, 1000 * MB)
    machine.ask(0.0, "a", 1.0)
    machine.ask(0.0, "b", 1.0, keep_alive=0.0)
    machine.ask(0.0, "c", 1.0, keep_alive=-1.0)
    machine.run(until=8.0)
    assert [seat.state for seat in seats] == ["awake", "asleep", "awake"]
    machine.run()
    assert [seat.state for seat in seats] == ["asleep", "asleep", "awake"]


def test_a_pinned_model_stays():
    seats = [Seat("a", 400 * MB, pinned=True), Seat("b", 500 * MB), Seat("c", 500 * MB)]
    machine = Machine(seats, 1000 * MB)
    for number in range(30):
        machine.ask(number, "abc"[number % 3], 0.2)
    machine.run()
    assert seats[0].state == "awake"
    assert len(machine.admitted) == 30


def test_who_waited_for_a_model_that_nobody_wants_any_more_is_let_in_again():
    machine = Machine([Seat("a", 600 * MB), Seat("b", 600 * MB)], 1000 * MB, turn=0.0)
    a, b = machine.turns.seats.values()
    machine.ask(0.0, "a", 100.0)
    machine.run(until=1.0)
    waiter = machine.turns.enter(b, lambda: pytest.fail("it has gone"))
    machine.now = 3.0
    machine.run(until=4.0)
    assert a.state == "closing"
    late = machine.ask(5.0, "a", 1.0)
    machine.run(until=6.0)
    assert late not in machine.admitted
    machine.turns.give_up(b, waiter)
    machine.run(until=7.0)
    assert a.state == "awake"
    assert late in machine.admitted


@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes_everybody_is_served_within_the_bound(seed):
    draw = random.Random(seed)
    names = "abcdef"[: draw.randint(2, 6)]
    sizes = {name: draw.randint(100, 900) * MB for name in names}
    seats = [Seat(name, size, asleep_bytes=draw.choice((0, size // 10))) for name, size in sizes.items()]
    asleep = sum(seat.asleep_bytes for seat in seats)
    budget = max(sizes.values()) + asleep + draw.randint(0, 600) * MB
    turn, change_s, longest = draw.uniform(0, 6), draw.uniform(0.05, 1), draw.uniform(0.1, 4)
    machine = Machine(seats, budget, turn, change_s)
    time = 0.0
    for _ in range(300):
        time += draw.expovariate(draw.choice((0.3, 3.0)))
        machine.ask(time, draw.choice(names), draw.uniform(0, longest))
    machine.run()
    assert len(machine.admitted) == 300
    # every other model may be before it: its turn, what runs then, and a change each of it and of those it displaces
    bound = len(names) * (max(turn, 8 * change_s) + longest + len(names) * change_s)
    assert max(machine.admitted.values()) <= bound
