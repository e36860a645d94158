"""A noisy engine on a noisy machine, on a simulated clock: a workbench whose true effects are known.

Scores have noise of their own (2.5% a measurement). The machine's speed wanders by some percent a minute and now and then
drops to 60% for a while, which moves scores and the memory's bandwidth alike.
"""

import math
import random
from contextlib import contextmanager

from core_commands.tune.trials import TrialError

NOISE = 0.025


class SimulatedSubject:
    def __init__(self, bench, values):
        self.bench, self.values = bench, dict(values)

    def measure(self, seed):
        bench = self.bench
        bench.measured.append((tuple(self.values), seed))
        bench.pass_time(bench.measure_s / 2)
        speed = bench.speed
        bench.pass_time(bench.measure_s / 2)
        load = 1 + 0.2 * math.sin(seed)  # prompts differ from seed to seed, for every server alike
        effect = sum(bench.effects.get((name, value), 0.0) for name, value in self.values.items())
        return 1000 * load * speed * math.exp(effect + bench.random.gauss(0, NOISE))


class SimulatedBench:
    """effects: true logarithms of ratios, by (argument, value). broken: values with which no server starts."""

    def __init__(self, effects, seed=0, *, open_s=4.0, measure_s=1.5, broken=(), slow=()):
        self.effects, self.broken, self.slow = effects, broken, slow
        self.open_s, self.measure_s = open_s, measure_s
        self.random = random.Random(seed)
        self.speed, self.dip_until, self.time = 1.0, 0.0, 0.0
        self.opened_now, self.opened_ever, self.measured = [], [], []

    def now(self):
        return self.time

    def pass_time(self, seconds):
        self.time += seconds
        self._wander(seconds)

    def _wander(self, seconds):
        self.base = getattr(self, "base", 1.0) * math.exp(self.random.gauss(0, 0.01 * math.sqrt(seconds)))
        self.base = min(max(self.base, 0.7), 1.3)
        if self.time > self.dip_until and self.random.random() < seconds / 60:
            self.dip_until = self.time + self.random.uniform(2, 15)
        self.speed = self.base * (0.6 if self.time < self.dip_until else 1.0)

    def bandwidth(self):
        self.pass_time(0.05)
        return 20 * self.speed * math.exp(self.random.gauss(0, 0.02))

    @contextmanager
    def opened(self, values):
        if any(item in self.broken for item in values.items()):
            self.pass_time(1.0)
            raise TrialError("the server does not start: its process ended with exit code 1: no memory")
        self.pass_time(self.open_s)
        self.opened_now.append(dict(values))
        self.opened_ever.append(dict(values))
        try:
            yield SimulatedSubject(self, values)
        finally:
            self.opened_now.pop()

    def calibrate(self, subject, seconds, candidates):
        subject.measure(-1)
        return [each for each in self.slow if each.text in {candidate.text for candidate in candidates}]

    def compare(self, present, trial):
        return "3 of 16 answers differ"
