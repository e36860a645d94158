"""The forecast of one server: its live requests, what will become of them, and how well that was foretold.

Owns: `Forecast`: live requests in the order of their arrival, the run of the queue from now on, the widths of
intervals. Never does: refuse, ask the engine, or write an answer. Called by: the quotes of a server (feed it), the
limits of the queue (read it).

Every request is foretold when it comes and scored when it has its first token and its end, whether its client asked for
a quote or not: that is how the widths are learned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import sqrt
from typing import Literal, NamedTuple

from core.api.scheduler_config import SchedulerConfig
from core.scheduler.step_cost import StepCost
from core_frontend.quote.queue_run import Job, QueueRun, Rates, budgets, room_of
from core_frontend.quote.widths import LEAST, Factors, Lengths, Width

Kind = Literal["first", "end", "usual_end"]
KINDS: tuple[Kind, ...] = ("first", "end", "usual_end")
FRESH_S = 0.05
"""Seconds for which a run of the queue counts, if no request left it since."""
WORK_S = 30.0
"""Seconds over which the prompts that arrive are averaged: they slow down the answers under way."""
MOST_WORK = 0.8
GOLDEN = 0.618
MOST_REGIME = 5


class Interval(NamedTuple):
    """A time in seconds from now that lies within with a probability of 90%."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Return the middle, for comparisons of one time with another."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to foretell. prompt, cached: tokens of its prompt, and of its cached beginning. most: tokens of each of its
    `n` answers at most."""

    prompt: int
    most: int
    cached: int = 0
    n: int = 1


@dataclass(frozen=True, slots=True)
class Foretold:
    """What was foretold of a request, in seconds from its arrival.

    first: to the first token. step: of each further token. regime: by which widths are kept apart. factors: on each kind.
    usual: expected tokens of its answer.
    """

    first: float
    step: float
    usual: float
    regime: int
    factors: dict[Kind, Factors]

    @property
    def earliest(self) -> float:
        """Return the seconds before which the first token comes in 1 of 20 cases."""
        return self.factors["first"].early * self.first

    @property
    def latest(self) -> float:
        """Return the seconds before which the first token comes in 19 of 20 cases."""
        return self.factors["first"].late * self.first

    def interval(self, kind: Kind, tokens: float = 0.0) -> Interval:
        """Return the interval of one kind; for an end, at this number of tokens."""
        factors, at = self.factors[kind], self.at(kind, tokens)
        return Interval(factors.low * at, factors.high * at)

    def at(self, kind: Kind, tokens: float = 0.0) -> float:
        """Return the prediction itself."""
        if kind == "first":
            return self.first
        return self.first + self.step * ((self.usual if kind == "usual_end" else tokens) - 1)


@dataclass(slots=True)
class _Live:
    """A live request.

    place: see `Lengths.expect`. arrived, entered, began: on the clock, the last with its first token. done: tokens of its
    prompt that steps have computed so far, as expected.
    """

    ask: Ask
    job: Job
    arrived: float
    entered: float
    place: float
    foretold: Foretold | None
    began: float = 0.0
    done: float = 0.0

    @property
    def rest(self) -> Job:
        """Return what is left of it to compute."""
        done = self.done
        return self.job._replace(prompt=self.job.prompt - done, start=self.job.start + done)


@dataclass(slots=True)
class Scores:
    """How well was foretold. seen, within: outcomes by kind, and those in their interval. on_outcome: called with kind, whether
    within, the interval's width and by how much the outcome came after its end, in seconds."""

    widths: dict[tuple[Kind, int], Width] = field(default_factory=dict)
    on_outcome: Callable[[Kind, bool, float, float], None] | None = None

    def factors(self, regime: int) -> dict[Kind, Factors]:
        """Return the present factors of all kinds."""
        return {kind: self._nearest(kind, regime).factors() for kind in KINDS}

    def score(self, kind: Kind, foretold: Foretold, predicted: float, seconds: float) -> None:
        """Learn from an outcome."""
        if predicted <= 0.0:
            return
        factors = foretold.factors[kind]
        within = self._width(kind, foretold.regime).observe(seconds / predicted, factors)
        if self.on_outcome is not None:
            late = max(seconds - factors.high * predicted, 0.0)
            self.on_outcome(kind, within, (factors.high - factors.low) * predicted, late)

    def num_seen(self, kind: Kind) -> int:
        """Return the number of outcomes of a kind."""
        return sum(width.num_seen for (of, _), width in self.widths.items() if of == kind)

    def _nearest(self, kind: Kind, regime: int) -> Width:
        """Return the width of a regime, or of the nearest one of which enough was seen."""
        known = [of for each, of in self.widths if each == kind and self.widths[each, of].num_seen >= LEAST]
        return self._width(kind, min(known, key=lambda of: abs(of - regime), default=regime))

    def _width(self, kind: Kind, regime: int) -> Width:
        return self.widths.setdefault((kind, regime), Width())


class Forecast:
    """The forecast of one engine. clock: returns seconds.

    scores: how well it foretold. lengths: of answers. room: tokens that the KV cache holds.
    """

    def __init__(self, config: SchedulerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.scores = Scores()
        self.lengths = Lengths()
        self.room = 0
        self._clock = clock
        self._config = config
        self._cost: StepCost | None = None
        self._waiting: dict[str, _Live] = {}
        self._running: dict[str, _Live] = {}
        self._run: QueueRun | None = None
        self._run_at = 0.0
        self._stepped = self._work_at = clock()
        self._work = self._arrivals = 0.0
        self._place = 0.0
        self._step_s = 0.0
        self._usual_prompt = 0.0
        self._usual_most = 1

    @property
    def is_ready(self) -> bool:
        """Whether the engine's steps are known, so that anything can be foretold."""
        return self._cost is not None

    def alone(self, ask: Ask) -> Foretold | None:
        """Foretell a request that would come to an engine without any other."""
        if self._cost is None:
            return None
        run = QueueRun(
            Rates.of(self._cost, ask.n, ask.prompt * ask.n, self._config), 0.0, (), self._config.max_num_seqs, 1
        )
        run.add([self._job(ask)])
        return Foretold(run.last(), run.rates.step, ask.most, 0, self.scores.factors(0))

    @property
    def is_sure(self) -> bool:
        """Whether enough outcomes were seen to refuse requests by what is foretold."""
        return self.is_ready and self.scores.num_seen("first") >= 2 * LEAST

    def learn(self, state: Sequence[float] | None, room: int) -> None:
        """Take the cost of steps that the engine has learned; None: it has learned nothing yet."""
        self.room = room
        if state is not None:
            self._cost = StepCost.restored(state)

    def foretell(self, ask: Ask) -> Foretold | None:
        """Foretell a request that would come now; None while the cost of steps is not known."""
        return self.foretell_all([ask])

    def foretell_all(self, asks: Sequence[Ask]) -> Foretold | None:
        """Foretell a request with several prompts, by its last one, which needs the most tokens of them."""
        run = self._present()
        if run is None:
            return None
        own = run.copy()
        for ask in asks[:-1]:
            own.add([self._job(ask)])
        last = Ask(asks[-1].prompt, max(ask.most for ask in asks), asks[-1].cached, asks[-1].n)
        return self._foretold(own, last)

    def enter(self, name: str, ask: Ask, arrived: float) -> Foretold | None:
        """Add a request, and foretell it from its arrival on the clock."""
        run = self._present()
        now = self._clock()
        # The golden ratio spreads places evenly, however many answers run at once.
        self._place = (self._place + GOLDEN) % 1.0
        foretold = None
        if run is not None:
            foretold = self._foretold(run, ask, self._run_at - arrived, self._place)
            self._note_work(run.rates.prompt(ask.prompt - ask.cached, ask.cached), now)
        if not self._waiting and not self._running:
            self._stepped = now  # an idle engine begins a step at once
        self._usual_most = ask.most
        self._usual_prompt += 0.1 * (ask.prompt - ask.cached - self._usual_prompt)
        self._waiting[name] = _Live(ask, self._job(ask, self._place), arrived, now, self._place, foretold)
        return foretold

    def stepped(self) -> None:
        """Note that a step of the engine has ended. To be called before the first tokens of that step are noted."""
        step_began, self._stepped = self._stepped, self._clock()
        self._run = None  # who was to join the next step is in the one that begins now
        num_streams = sum(live.ask.n for live in self._running.values())
        room = self._room(num_streams)
        for live in self._waiting.values():
            if live.entered > step_began or room <= 0.0 or num_streams >= self._config.max_num_seqs:
                return
            left = live.job.prompt - live.done
            # A prompt that fits will have its first token by now; of one that does not, a part is computed.
            live.done = min(live.done + room, live.job.prompt - 1.0)
            room -= left
            num_streams += live.ask.n

    def first(self, name: str) -> None:
        """Note that a request has its first token. Unknown names are ignored."""
        live = self._waiting.pop(name, None)
        if live is None:
            return
        now = self._clock()
        self._running[name] = live
        self._run = None
        live.began = now
        if live.foretold is not None:
            self.scores.score("first", live.foretold, live.foretold.first, now - live.arrived)

    def end(self, name: str, num_tokens: int = 0) -> None:
        """Remove a request. num_tokens: of its longest answer, if all answers are complete; 0 says nothing about lengths."""
        live = self._running.pop(name, None) or self._waiting.pop(name, None)
        if live is None:
            return
        self._run = None
        if not num_tokens:
            return
        took = self._clock() - live.arrived
        foretold = live.foretold
        if foretold is not None:
            self.scores.score("end", foretold, foretold.at("end", num_tokens), took)
            self.scores.score("usual_end", foretold, foretold.at("usual_end"), took)
        self.lengths.observe(num_tokens, live.ask.most)

    def first_tokens(self, names: Iterable[str], num_more: int) -> list[tuple[float, str]]:
        """Return the seconds until each of these waiting requests has its first token, in that order; 19 of 20 come earlier.

        num_more: usual requests that join the queue behind them; their names are empty.
        """
        run = self._present()
        if run is None:
            return []
        firsts = dict(zip(self._waiting, run.times()[0], strict=True))
        behind = run.copy()
        behind.add([Job(self._usual_prompt, 0.0, self.lengths.expect(self._usual_most), 1)] * num_more)
        found = sorted((firsts[name], name) for name in names if name in firsts)
        found += [(seconds, "") for seconds in behind.times()[0]]
        return self._late(found, self.scores.factors(self._regime())["first"].late)

    def ends(self, names: Iterable[str]) -> list[tuple[float, str]]:
        """Return the seconds until each of these live requests has ended, in that order; 19 of 20 come earlier."""
        run = self._present()
        if run is None:
            return []
        ends = dict(zip(self._waiting, run.times()[1], strict=True))
        ends |= {name: run.rates.step * self._left(live) for name, live in self._running.items()}
        found = sorted((ends[name], name) for name in names if name in ends)
        return self._late(found, self.scores.factors(self._regime())["usual_end"].late)

    @staticmethod
    def _late(found: list[tuple[float, str]], late: float) -> list[tuple[float, str]]:
        """Return the times as late as they may be. late: factor on one time; errors of those before it even out."""
        return [(seconds * (1.0 + (late - 1.0) / sqrt(at)), name) for at, (seconds, name) in enumerate(found, 1)]

    def _foretold(self, run: QueueRun, ask: Ask, spent: float = 0.0, place: float = 0.5) -> Foretold:
        """Foretell a request that joins `run`. spent: seconds since its arrival."""
        regime = self._regime()
        run.add([self._job(ask, place)])
        # Prompts that come later make this answer wait, too.
        slowed = run.rates.step / (1.0 - min(self._work, MOST_WORK))
        usual = self.lengths.expect(ask.most)
        return Foretold(spent + run.last(), slowed, usual, regime, self.scores.factors(regime))

    def _regime(self) -> int:
        """Return by what widths are kept apart: idle, streams alone, or how many wait."""
        if self._waiting:
            return min(1 + len(self._waiting).bit_length(), MOST_REGIME)
        return int(bool(self._running))

    def _present(self) -> QueueRun | None:
        """Return the run of the present queue; None while the cost of steps is not known."""
        now = self._clock()
        if self._run is None or now - self._run_at > FRESH_S:
            if self._cost is None:
                return None
            self._run, self._run_at = self._new_run(self._cost, now), now
        return self._run

    def _new_run(self, cost: StepCost, now: float) -> QueueRun:
        config = self._config
        running = list(self._running.values())
        jobs = [live.rest if live.done else live.job for live in self._waiting.values()]
        num_rows = self._num_rows(running, jobs)
        busy = min(sum(live.ask.n for live in running) + len(jobs), num_rows)
        context = sum((live.ask.prompt + self._have(live)) * live.ask.n for live in running)
        if running:
            context = context * max(busy, 1) // len(running)
        rates = Rates.of(cost, busy, context, config, self._arrivals)
        # Prompts come between the tokens of an answer.
        self._step_s = rates.step / (1.0 - min(self._work, MOST_WORK))
        remaining = [self._left(live) for live in running for _ in range(live.ask.n)]
        run = QueueRun(rates, self._stepped - now, remaining, num_rows, len(jobs))
        # The step in progress has the prompts that came before it began.
        num_begun = sum(1 for _ in takewhile(lambda live: live.entered <= self._stepped, self._waiting.values()))
        run.add(jobs[:num_begun])
        run.close()
        run.begin_now()
        run.add(jobs[num_begun:])
        return run

    def _room(self, num_streams: int) -> float:
        """Return the prompt tokens of a step that began with the requests which wait now."""
        budget, mixed = budgets(self._config)
        behind = min(len(self._waiting), self._config.max_num_seqs - num_streams) - 1
        return room_of(budget, mixed, self._config.queued_prompts_weight, num_streams, behind)

    def _num_rows(self, running: Sequence[_Live], jobs: Sequence[Job]) -> int:
        """Return how many answers fit at once: the limit of sequences, and that of the KV cache."""
        limit = self._config.max_num_seqs
        lengths = [live.ask.prompt + self._have(live) + self._left(live) for live in running]
        lengths += [job.prompt + job.start + job.length for job in jobs[:limit]]
        if not lengths or not self.room:
            return limit
        return max(1, min(limit, int(self.room * len(lengths) / max(sum(lengths), 1.0))))

    def _job(self, ask: Ask, place: float = 0.5) -> Job:
        return Job(ask.prompt - ask.cached, ask.cached, self.lengths.expect(ask.most, 0, place), ask.n)

    def _left(self, live: _Live) -> float:
        """Return the steps until a running answer ends, as expected."""
        have = self._have(live)
        return self.lengths.expect(live.ask.most, have, live.place) - have

    def _have(self, live: _Live) -> int:
        """Return how many tokens an answer has by now, by the time that steps take: whole answers come only at their end."""
        if not self._step_s:
            return 1
        return min(1 + int((self._clock() - live.began) / self._step_s), max(live.ask.most - 1, 0))

    def _note_work(self, seconds: float, now: float) -> None:
        """Add a prompt to the seconds of prompts per second that arrive."""
        fade = 0.5 ** ((now - self._work_at) / WORK_S)
        # At a steady rate of `seconds` per `gap`, the sum over all earlier ones tends to that rate.
        self._work = self._work * fade + seconds / WORK_S * 0.693
        self._arrivals = self._arrivals * fade + 0.693 / WORK_S
        self._work_at = now
