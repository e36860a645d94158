"""Everything at once until the time is over: honest clients, hostile requests, clients that leave."""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.attack.arena import Arena
from tests.attack.canary import canary
from tests.attack.corpus import ROWS
from tests.attack.leaving import idle, leave_in_body, leave_in_stream
from tests.attack.make import chat, completion
from tests.attack.phase_stalls import yield_processor
from tests.attack.results import Clock, Phase
from tests.attack.row import Row, problems
from tests.attack.send import Target, send

HONEST, HOSTILE, LEAVING = 6, 3, 3
ANSWER_LIMIT_S = 40.0
GROWTH_MB = 120.0
PAUSE_S = 0.05  # after a refused connection, so that a dead server is not asked without end
NOTES = 20
HONEST_ROW = Row("honest", "/v1/completions", allowed=frozenset({200, 429}), seconds=ANSWER_LIMIT_S)


@dataclass(slots=True)
class Tally:
    """What the clients have seen so far. bad: what was wrong, and how often. lock: around every change."""

    sent: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, found: list[str]) -> None:
        """Count one request and what was wrong with its answer."""
        with self.lock:
            self.sent[kind] += 1
            self.bad.update(found)


def run(arena: Arena, phase: Phase, seconds: float) -> None:
    """Load for all of the time but its end, then a look at what is left."""
    with arena.target() as (target, server):
        arena.check_tokens(phase, target, "before")
        clock, tally = Clock(max(1.0, seconds - 12.0)), Tally()
        kinds = [honest] * HONEST + [hostile] * HOSTILE + [leaving] * LEAVING
        memory: list[dict[str, float]] = []
        with canary(phase, target, "the load"), ThreadPoolExecutor(len(kinds), initializer=yield_processor) as pool:
            seeds = [random.Random(arena.random.random()) for _ in kinds]
            running = [pool.submit(kind, target, clock, tally, own) for kind, own in zip(kinds, seeds, strict=True)]
            while clock.left:
                time.sleep(min(2.0, clock.left))
                if server is not None and server.process.poll() is None:
                    memory.append(server.memory())
                arena.say("load", f"{dict(tally.sent)}, {tally.bad.total()} wrong", often=True)
            for future in running:
                future.result()
        phase.check("answers as expected", not tally.bad, f"{tally.bad.total()} wrong", 0)
        phase.notes += [f"{count} times: {problem[:300]}" for problem, count in tally.bad.most_common(NOTES)]
        phase.notes.append(f"Sent: {dict(tally.sent)}")
        if len(memory) > 8:
            # The first quarter fills caches; after it memory is to stay where it is.
            early, late = memory[len(memory) // 4], memory[-1]
            for name in early:
                phase.at_most(f"growth of the {name}'s memory", late[name] - early[name], GROWTH_MB, "MB")
        idle(phase, target)
        arena.check_tokens(phase, target)


def honest(target: Target, clock: Clock, tally: Tally, own: random.Random) -> None:
    """Ordinary requests, which are always answered."""
    while clock.left:
        words = " ".join(own.choices(("sun", "moon", "tree", "river", "stone"), k=own.randint(2, 60)))
        fields = {"max_tokens": own.randint(1, 40), "temperature": own.choice((0, 0.8)), "seed": own.randint(0, 9)}
        talk = own.random() < 0.4
        body = (
            chat(messages=[{"role": "user", "content": words}], **fields)
            if talk
            else completion(prompt=words, **fields)
        )
        row = Row(
            HONEST_ROW.name, "/v1/chat/completions" if talk else HONEST_ROW.target, body, allowed=HONEST_ROW.allowed
        )
        answer = send(target, row, ANSWER_LIMIT_S)
        tally.add("honest", named(row, problems(row, answer, timed=False)))
        time.sleep(0.0 if answer.status else PAUSE_S)


def hostile(target: Target, clock: Clock, tally: Tally, own: random.Random) -> None:
    """Rows of the corpus; under load they may also be told to come back."""
    rows = [row for row in ROWS if row.setup == "plain"]
    while clock.left:
        row = own.choice(rows)
        answer = send(target, row, ANSWER_LIMIT_S)
        found = [] if answer.status in (408, 429) else problems(row, answer, timed=False)
        tally.add("hostile", named(row, found))
        time.sleep(0.0 if answer.status else PAUSE_S)


def leaving(target: Target, clock: Clock, tally: Tally, own: random.Random) -> None:
    """Clients that go away in the middle."""
    while clock.left:
        leave = own.choice((leave_in_body, leave_in_stream))
        left = leave(target, own.randint(0, 1000))
        tally.add("leaving", [])
        time.sleep(0.0 if left else PAUSE_S)


def named(row: Row, found: list[str]) -> list[str]:
    return [f"{row.name}: {problem}" for problem in found]
