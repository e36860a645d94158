"""A server whose scheduler is real and whose steps take the seconds of a made-up machine, on a clock of its own.

Owns: `Served`: arrivals, steps, and the forecast that sees what a server sees. Called by: the tests and bars of quotes.
"""

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from core.api.errors import RequestError
from core.api.step_plan import StepResult
from core.scheduler.step_cost import StepCost, work_of
from core_frontend.queue.limit import QueueLimit
from core_frontend.quote.forecast import Ask, Forecast, Interval
from tests.scheduler.fake_model import make_request, make_scheduler
from tests.scheduler.test_step_cost import MACHINES, Machine

EOS, OTHER = 0, 1
LEARN_S = 1.0
"""Seconds between two times at which the forecast gets what the engine has learned."""


@dataclass
class Load:
    """What clients send. seed: of everything random. most: `max_tokens` of all; their answers are shorter, and only
    with `known` lengths each request asks for as many tokens as it gets."""

    machine: Machine = field(default_factory=lambda: MACHINES["two cores"])
    seed: int = 0
    most: int = 256
    noise: float = 0.05
    outliers: float = 0.005
    limits: dict[str, object] = field(default_factory=dict)
    num_blocks: int = 1 << 14
    known: bool = False

    def prompt(self, chance: random.Random) -> int:
        return min(max(int(chance.lognormvariate(5.2, 0.8)), 8), 2000)

    def answer(self, chance: random.Random) -> int:
        return min(max(int(chance.lognormvariate(4.0, 0.6)), 2), self.most)


@dataclass
class Told:
    """What a client was told, and what became of it, in seconds from its arrival."""

    first: Interval
    end: Interval
    took_first: float = 0.0
    took_end: float = 0.0


class Served:
    """One run. now: seconds. told: by request. refused: how often each request was refused.

    most_waiting: limit on waiting requests, beyond which clients are refused and come back when they are told to; 0: none.
    foretells: whether the limit uses the forecast.
    """

    def __init__(self, load: Load, most_waiting: int = 0, *, foretells: bool = True) -> None:
        self.load = load
        self.now = 1000.0
        self.chance = random.Random(load.seed)
        settings = {"max_num_seqs": 32, "max_num_batched_tokens": 2048, "max_model_len": 4096} | load.limits
        self.scheduler = make_scheduler(load.num_blocks, 16, clock=lambda: self.now, explains="off", **settings)
        self.forecast = Forecast(self.scheduler.config, lambda: self.now)
        self.told: dict[str, Told] = {}
        self.refused: Counter[str] = Counter()
        self.limit = QueueLimit(most_waiting, 0, clock=lambda: self.now)
        if foretells:
            self.limit.forecast = self.forecast
        self._sizes: dict[str, tuple[int, int]] = {}
        self._cost = StepCost()
        self._learned = 0.0
        self._arrived: dict[str, float] = {}
        self._lengths: dict[str, int] = {}
        self._have: dict[str, int] = {}
        self.context: dict[str, int] = {}
        self._events: list[tuple[float, str]] = []

    def arrive(self, at: float, name: str) -> None:
        heapq.heappush(self._events, (at, name))

    def poisson(self, rate: float, count: int) -> None:
        """Let `count` requests arrive at random, `rate` a second."""
        at = self.now
        for number in range(count):
            at += self.chance.expovariate(rate)
            self.arrive(at, f"r{number}")

    def run(self) -> None:
        while self._events or self.scheduler.has_unfinished():
            if not self.scheduler.has_unfinished():
                self.now = max(self.now, self._events[0][0])
            self._take()
            self._step()

    def _take(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            at, name = heapq.heappop(self._events)
            self._enter(at, name)

    def _enter(self, at: float, name: str) -> None:
        if name not in self._sizes:
            self._sizes[name] = self.load.prompt(self.chance), self.load.answer(self.chance)
        prompt, length = self._sizes[name]
        # The server foretells when the request comes, in the middle of a step; the engine sees it after that step.
        now, self.now = self.now, at
        try:
            self.limit.enter({name: prompt})
        except RequestError as error:
            self.now = now
            self.refused[name] += 1
            self.arrive(at + (error.retry_after or 1), name)
            return
        ask = self.ask(name)
        foretold = self.forecast.enter(name, ask, at)
        self.now = now
        self._arrived[name], self._lengths[name], self._have[name] = at, length, 0
        if foretold is not None:
            self.told[name] = Told(foretold.interval("first"), foretold.interval("usual_end"))
        ids = [self.chance.randrange(2, 1 << 20) for _ in range(4)]
        # Of a prompt whose pages have come from elsewhere the last tokens are computed; `context` has the others.
        new = max(prompt - ask.cached, 5)
        self.context[name] = prompt - new
        self.scheduler.add(make_request(name, [*ids, *range(new - 4)], ask.most, eos=[EOS]))

    def ask(self, name: str) -> Ask:
        """Return what a request asks for."""
        prompt, length = self._sizes[name]
        return Ask(prompt, length if self.load.known else self.load.most)

    def _step(self) -> None:
        step = self.scheduler.schedule()
        work = work_of(step.plan, step.num_decodes)
        if step.decodes is not None:
            more = sum(self.context[sequence.request.request_id] for sequence in step.decodes.sequences)
            work = work._replace(context_tokens=work.context_tokens + more)
        seconds = 0.0
        if step.plan.total_num_tokens:
            seconds = self.load.machine.seconds(work) * max(self.chance.gauss(1.0, self.load.noise), 0.5)
            if self.chance.random() < self.load.outliers:
                seconds *= 5.0
            self._cost.observe(work, seconds)
        self.now += seconds
        # What comes during a step is foretold in its middle, and waits for the next one.
        self._take()
        rows = [] if step.decodes is None else list(step.decodes.sequences)
        rows += [chunk.sequence for chunk in step.chunks if chunk.completes]
        result = StepResult()
        tokens = []
        for sequence in rows:
            name = sequence.request.request_id
            self._have[name] += 1
            tokens.append(EOS if self._have[name] >= self._lengths[name] else OTHER)
        result.slots = np.array([sequence.slot for sequence in rows], np.int32)
        result.token_ids = np.array(tokens, np.int32)
        self.scheduler.finish(step, result)
        self._tell([sequence.request.request_id for sequence in rows])
        if self.now - self._learned >= LEARN_S and self._cost.num_observed:
            self._learned = self.now
            self.forecast.learn(self._cost.state(), self.load.num_blocks * 16)

    def _tell(self, names: list[str]) -> None:
        self.forecast.stepped()
        for name in names:
            have = self._have[name]
            took = self.now - self._arrived[name]
            if have == 1:
                self.limit.leave(name)
                self.forecast.first(name)
            told = self.told.get(name)
            if told is not None and have == 1:
                told.took_first = took
            if have >= min(self._lengths[name], self.load.most):
                if told is not None:
                    told.took_end = took
                self.limit.end(name)
                self.forecast.end(name, have)


def capacity(load: Load) -> float:
    """Return the requests a second that a machine answers while its queue is never empty."""
    served = Served(load)
    for number in range(300):
        served.arrive(served.now, f"c{number}")
    begin = served.now
    served.run()
    return 300 / (served.now - begin)


def came_back(load: Load, *, foretells: bool, count: int = 600) -> tuple[int, float]:
    """Return how many clients were refused, and the share of them that got in when they came back as they were told to.

    Crowds come to a busy server: more at once than may wait.
    """
    served = Served(load, most_waiting=16, foretells=foretells)
    rate = capacity(load)
    for number in range(60):  # so that the pace is known
        served.arrive(served.now + number / rate, f"early{number}")
    for number in range(count):
        crowd = number // 60
        served.arrive(served.now + (90 + 75 * crowd) / rate + 0.01 * (number % 60), f"r{number}")
    served.run()
    refused = [times for name, times in served.refused.items() if name.startswith("r")]
    return len(refused), sum(times == 1 for times in refused) / max(len(refused), 1)
