"""Sessions: another key's, and more pins than the KV cache has room for.

Owns: the server with two keys, and what must hold for the one while the other pins. Never does: send rows, which
the corpus has.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, takewhile
from typing import Any

from tests.attack.arena import Arena
from tests.attack.canary import canary
from tests.attack.leaving import idle
from tests.attack.make import message
from tests.attack.phase_load import ANSWER_LIMIT_S, Tally, named
from tests.attack.phase_stalls import yield_processor
from tests.attack.results import Clock, Phase
from tests.attack.row import KEY, Answer, Row, problems
from tests.attack.rows_sessions import ACTIONS, SESSIONS
from tests.attack.send import Target, send

FOREIGN_KEY = "foreign-key"
MINE = "mine"
OTHERS, FORKS = 24, 40
"""Sessions of the other key: with texts of their own, whose pins take more than all pins may have, and forks of one of them.
Together they are as many as a key may have."""
PINS, PINNING = 10_000, 4
SHARE = 0.8
"""Of the time, for the pins."""


def run(arena: Arena, phase: Phase, seconds: float) -> None:
    """One key has a pinned session; the other asks for it, then pins until nothing has room."""
    clock = Clock(seconds)
    with arena.server(api_key=[KEY, FOREIGN_KEY]) as server:
        own, foreign = server.target, replace(server.target, key=FOREIGN_KEY)
        arena.check_tokens(phase, own, "before")
        talk(own, MINE, "Hello. ")
        pinned = ask(own, "POST", "/pin")
        phase.check(
            "a session is pinned", shown(pinned).get("pinned_bytes", 0) > 0, pinned.body[:200], "200, some bytes"
        )
        strangers(phase, own, foreign)
        with canary(phase, own, "pins"):
            pins(phase, foreign, Clock(clock.left * SHARE))
        for name in ("pinned_bytes", "turns"):
            kept, begun = shown(ask(own, "GET")).get(name), shown(pinned).get(name)
            phase.check(f"the other key's session keeps its {name}", kept == begun, kept, begun)
        arena.check_tokens(phase, own, "beside pins")
        for target in (own, foreign):
            for session in shown(send(target, Row("list", SESSIONS, method="GET")))["data"]:
                ask(target, "DELETE", name=session["id"])
        arena.check_tokens(phase, own)
        idle(phase, own)  # after a request: /metrics has the usage of the last step
        phase.check("the server lives", server.process.poll() is None, server.process.poll(), "running")


def strangers(phase: Phase, own: Target, foreign: Target) -> None:
    """Whatever another key does about a session is a 404, and says nothing of it."""
    for method, path, fields in ACTIONS:
        answer = ask(foreign, method, path, fields)
        known = ask(foreign, method, path, fields, name="nobody")
        same = answer.body.replace(MINE.encode(), b"nobody") == known.body
        phase.check(f"{method} of another key's session{path}", answer.status == 404 and same, answer.outcome, 404)
    listed = send(foreign, Row("list", SESSIONS, method="GET"))
    phase.check("a list has one's own sessions alone", shown(listed).get("data") == [], listed.body[:200], "none")
    found = shown(ask(own, "GET"))
    phase.check("the session is still there, and pinned", found.get("pinned") is True, found, "pinned")


def pins(phase: Phase, target: Target, clock: Clock) -> None:
    """Pin all sessions of a key, again and again."""
    names = [f"s{number}" for number in range(OTHERS)]
    for name in names:
        talk(target, name, f"{name} goes on. ")
    forked = [f"fork-{number}" for number in range(FORKS)]
    made = [ask(target, "POST", "/fork", {"name": name}, name=names[0]).status for name in forked]
    phase.check("a session is forked", set(made) == {200}, set(made), {200})
    more = ask(target, "POST", "/fork", {"name": "one-more"}, name=names[0])
    phase.check("there are no more sessions than a key may have", more.status == 409, more.outcome, 409)
    names += forked
    tally, numbers = Tally(), count()

    def pin() -> None:
        for number in takewhile(lambda number: number < PINS and clock.left > 0, numbers):
            row = Row("a pin", f"{SESSIONS}/{names[number % len(names)]}/pin", allowed=frozenset({200, 409}))
            answer = send(target, row, ANSWER_LIMIT_S)
            tally.add(f"a pin: {answer.outcome}", named(row, problems(row, answer, timed=False)))

    with ThreadPoolExecutor(PINNING, initializer=yield_processor) as pool:
        for future in [pool.submit(pin) for _ in range(PINNING)]:
            future.result()
    phase.check("answers to pins", not tally.bad, f"{tally.bad.total()} wrong", 0)
    full = tally.sent["a pin: 409"]
    phase.check("pins are refused where they have no room", 0 < full < tally.sent.total(), full, "some")
    phase.notes += [f"{times} times: {problem[:300]}" for problem, times in tally.bad.most_common(10)]
    phase.notes.append(f"Sent: {dict(tally.sent)}")


def talk(target: Target, name: str, text: str) -> Answer:
    """A turn of a session: its text again and again, most of what a request may have."""
    body = json.dumps({**json.loads(message(text * 100)), "session": name}).encode()
    return send(target, Row("a turn", "/v1/chat/completions", body), ANSWER_LIMIT_S)


def ask(target: Target, method: str, path: str = "", fields: dict[str, Any] | None = None, name: str = MINE) -> Answer:
    """Do something about a session."""
    body = b"" if fields is None else json.dumps(fields).encode()
    return send(target, Row("a session", f"{SESSIONS}/{name}{path}", body, method=method), ANSWER_LIMIT_S)


def shown(answer: Answer) -> dict[str, Any]:
    """The JSON of an answer; empty when it is none."""
    try:
        return dict(json.loads(answer.body))
    except ValueError:
        return {}
