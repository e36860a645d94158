"""Adapters: hostile names, paths, files and shared memory, names that change while they are asked for, and thousands of loads.

Owns: the server with adapters, and what must hold while operators load and unload at the same time. Never does: measure it in
another way than the phase of stalls.
"""

import json
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from core_config.locating.default_model import default_model
from tests.adapters.loads import held_by
from tests.attack import rows_adapters, rows_sent
from tests.attack.arena import Arena, token_ids
from tests.attack.canary import canary
from tests.attack.make import completion
from tests.attack.phase_load import ANSWER_LIMIT_S, Tally, named
from tests.attack.phase_rows import attack
from tests.attack.phase_stalls import ALLOWED_S, yield_processor
from tests.attack.probe import Measured, probing
from tests.attack.results import Clock, Phase
from tests.attack.row import Row, problems
from tests.attack.rows_adapters import GOOD, LOAD, OTHER, UNLOAD, load_of, write_files
from tests.attack.rows_sent import Sent
from tests.attack.send import Target, send
from tests.attack.server import Server

NAMES = ("a", "b", "c")
ASKING, CHANGING = 3, 3
QUIET_SHARE = 0.3
Answers = list[list[int]]
ROWS_SHARE = 0.4
LOADS_SHARE = 0.4
LEAST_LOADS, MOST_LOADS = 60, 10_000
FIRST_LOADS = 20
"""Loads before memory is first read: some of it is taken once, as for the first request of each thread."""
GROWTH_MB = 24.0
"""Less than two of these adapters."""
ASKED = {"prompt": "Once upon a time", "max_tokens": 16, "return_token_ids": True}
CHANGED = frozenset({200, 400, 404, 409})
"""A load, and refusals: of a name that another one has taken, or that has gone."""


def run(arena: Arena, phase: Phase, seconds: float) -> None:
    """The rows, one after the other; then loads, unloads and requests at once, beside a stream."""
    clock = Clock(seconds)
    directory = arena.home / "adapters"
    directory.mkdir()
    write_files(directory, str(default_model()))
    arguments = {"enable_lora": True, "max_loras": 2, "allow_runtime_lora_updating": True, "lora_directory": directory}
    arguments["weight_transfer_config"] = "{}"
    with (
        arena.server(**arguments) as server,
        rows_sent.sent(directory / GOOD) as good,
        rows_sent.sent(directory / OTHER) as other,
        rows_sent.traps(),
    ):
        target = server.target
        arena.check_tokens(phase, target, "before")
        rows = [("adapters", row) for row in (*rows_sent.rows(good), *rows_adapters.rows())]
        with canary(phase, target, "rows about adapters"):
            sent = attack(arena, phase, target, server, rows, Clock(clock.left * ROWS_SHARE))
        phase.notes += [f"No time was left for: {row.name}" for _, row in rows[sent:]]
        phase.check("no pickle's code has run", not (directory / rows_adapters.RAN).exists())
        phase.check("nothing is loaded", names_of(target) == [], names_of(target), [])
        loads(phase, server, Clock(clock.left * LOADS_SHARE), good)
        races(arena, phase, target, Clock(clock.left), (good, other))
        phase.check("the server lives", server.process.poll() is None, server.process.poll(), "running")
        arena.check_tokens(phase, target)


def loads(phase: Phase, server: Server, clock: Clock, good: Sent) -> None:
    """Load and unload until the time is over, of files and of memory, and compare what the server holds."""
    early: dict[str, float] = {}
    number = refused = 0
    while number < LEAST_LOADS or (clock.left and number < MOST_LOADS):
        number += 1
        name = f"name-{number}"
        body = good.load(name) if number % 3 == 0 else load_of(name, (GOOD, OTHER)[number % 2])
        for row in (Row("load", LOAD, body), Row("unload", UNLOAD, json.dumps({"lora_name": name}).encode())):
            refused += send(server.target, row, ANSWER_LIMIT_S).status != 200
        if number == FIRST_LOADS:
            early = held(server)
    phase.check("every load and unload is done", not refused, f"{refused} of {2 * number} refused", 0)
    for process, megabytes in held(server).items():
        growth = megabytes - early.get(process, 0.0)
        phase.at_most(f"growth of the {process} over {number - FIRST_LOADS} loads", growth, GROWTH_MB, "MB")


def held(server: Server) -> dict[str, float]:
    """MB that the processes of a server have written themselves, by their kind. See `tests.adapters.loads.held_now`."""
    return {"server": held_by(server.process.pid), "engine": held_by(server.engine.pid)}


def races(arena: Arena, phase: Phase, target: Target, clock: Clock, others: tuple[Sent, Sent]) -> None:
    """Operators change three names at once while clients ask for them. others: the two good adapters in shared memory."""
    right = right_answers(target)
    phase.check("two adapters answer, each in its way", all(right) and right[0] != right[1], right, "two answers")
    tally = Tally()
    for name in NAMES:
        send(target, Row("load", LOAD, load_of(name, own_path(name), load_inplace=True)), ANSWER_LIMIT_S)
    quiet = beside(arena, target, Clock(clock.left * QUIET_SHARE), tally, [asking] * ASKING, right)
    measured = beside(arena, target, clock, tally, [asking] * ASKING + [partial(changing, others)] * CHANGING, right)
    phase.check("answers of names that change", not tally.bad, f"{tally.bad.total()} wrong", 0)
    phase.notes += [f"{count} times: {problem[:300]}" for problem, count in tally.bad.most_common(10)]
    phase.notes.append(f"Sent: {dict(tally.sent)}")
    waits = (("/health", quiet.health, measured.health), ("the gap of a stream", quiet.gaps, measured.gaps))
    for what, before, during in waits:
        limit = max(before, default=0.0) + ALLOWED_S
        phase.at_most(f"longest: {what}, beside loads and unloads", max(during, default=99.0), limit)
        phase.series[f"{what}, beside loads and unloads"] = during
        phase.limits[f"{what}, beside loads and unloads"] = limit
    phase.check("nothing fails beside loads and unloads", not measured.failures, measured.failures, 0)
    for name in NAMES:
        send(target, Row("unload", UNLOAD, json.dumps({"lora_name": name}).encode()))
    phase.check("every name can be taken away", names_of(target) == [], names_of(target), [])


def beside(
    arena: Arena, target: Target, clock: Clock, tally: Tally, kinds: Sequence[Callable[..., None]], right: Answers
) -> Measured:
    """Measure how long others wait beside clients of these kinds."""
    with probing(target) as measured, ThreadPoolExecutor(len(kinds), initializer=yield_processor) as pool:
        seeds = [random.Random(arena.random.random()) for _ in kinds]
        running = [pool.submit(kind, target, clock, tally, own, right) for kind, own in zip(kinds, seeds, strict=True)]
        for future in running:
            future.result()
    return measured


def own_path(name: str) -> str:
    """The adapter that a name begins with."""
    return (GOOD, OTHER)[NAMES.index(name) % 2]


def right_answers(target: Target) -> Answers:
    """What the two good adapters say, each loaded alone."""
    found = []
    for path in (GOOD, OTHER):
        send(target, Row("load", LOAD, load_of(NAMES[0], path, load_inplace=True)), ANSWER_LIMIT_S)
        answer = send(target, Row("ask", "/v1/completions", completion(**ASKED, model=NAMES[0])), ANSWER_LIMIT_S)
        found.append(token_ids(answer))
    return found


def changing(
    others: tuple[Sent, Sent], target: Target, clock: Clock, tally: Tally, own: random.Random, right: Answers
) -> None:
    """An operator who loads, replaces and unloads names without looking."""
    while clock.left:
        name = own.choice(NAMES)
        if own.random() < 0.6:
            in_place = own.random() < 0.7
            body = load_of(name, own.choice((GOOD, OTHER, "weights-cut")), load_inplace=in_place)
            if own.random() < 0.3:
                body = own.choice(others).load(name, load_inplace=in_place)
            row = Row("a load in between", LOAD, body, allowed=CHANGED)
        else:
            row = Row("an unload in between", UNLOAD, json.dumps({"lora_name": name}).encode(), allowed=CHANGED)
        answer = send(target, row, ANSWER_LIMIT_S)
        tally.add(f"{row.name}: {answer.outcome}", named(row, problems(row, answer, timed=False)))


def asking(target: Target, clock: Clock, tally: Tally, own: random.Random, right: Answers) -> None:
    """A client of a name: it gets the answer of one of the adapters, whole, or hears that there is none."""
    row = Row("a name that changes", "/v1/completions", allowed=frozenset({200, 404, 409}))
    while clock.left:
        body = completion(**ASKED, model=own.choice(NAMES))
        answer = send(target, Row(row.name, row.target, body, allowed=row.allowed), ANSWER_LIMIT_S)
        found = problems(row, answer, timed=False)
        if answer.status == 200 and token_ids(answer) not in right:
            found.append(f"{token_ids(answer)}, which is the answer of neither adapter")
        tally.add(f"asked: {answer.outcome}", named(row, found))


def names_of(target: Target) -> list[str]:
    """The names of the adapters that a server lists."""
    answer = send(target, Row("models", "/v1/models", method="GET"))
    return [card["id"] for card in json.loads(answer.body)["data"] if card["parent"] is not None]
