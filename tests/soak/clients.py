"""The clients of a soak: honest ones whose answers are compared, slow ones, some that leave, some that ask for too much.

Owns: asking again, and the comparison with the oracle. Never does: injure. Called by: the run, a thread each.
"""

import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.attack.leaving import leave_in_body, leave_in_stream
from tests.attack.make import completion
from tests.attack.row import Row
from tests.attack.send import send
from tests.soak.answers import Answer, Unanswered, ask
from tests.soak.cases import CHAT, Case
from tests.soak.site import Site
from tests.soak.tally import Tally

ANSWER_LIMIT_S = 240.0
SLOW_S = 0.05
SESSIONS = "/v1/sessions"
MOST_TURNS = 8
"""Turns of a conversation; then it begins again, so that the same tokens are asked about after other deaths."""
EMPTY_LISTS, MOST_LISTS = 8, 64
MOST_S = 300.0
"""Seconds that a client goes on asking when it is told to come back."""

Oracle = dict[str, list[dict[str, Any]]]
"""The right answers of each case; more than one where operators change what a name stands for."""


def oracle(site: Site, cases: Sequence[Case]) -> Oracle:
    """The answers of a server that nobody disturbs. Raises AssertionError where a stream says something else."""
    found: Oracle = {}
    for case in cases:
        for model in case.models or (case.body.get("model"),):
            asked = case if model is None else replace(case, body={**case.body, "model": model})
            whole = ask(site.target, asked, ANSWER_LIMIT_S, stream=False).content
            streamed = ask(site.target, asked, ANSWER_LIMIT_S, stream=True).content
            assert streamed == whole, f"{case.name}: {streamed} as a stream, {whole} at once"
            found.setdefault(case.name, []).append(whole)
    return found


class Clients:
    """Everybody who asks, until told to stop. known: the right answers."""

    def __init__(self, site: Site, tally: Tally, cases: Sequence[Case], known: Oracle) -> None:
        self.site = site
        self.tally = tally
        self.cases = cases
        self.known = known
        self.over = threading.Event()
        self._turns: dict[tuple[int, ...], list[int]] = {}

    def honest(self, dice: random.Random) -> None:
        """Asks and compares."""
        while not self.over.is_set():
            case = dice.choice(self.cases)
            pause_s = SLOW_S if dice.random() < 0.2 else 0.0
            stream = dice.random() < 0.7
            answer = self._insist(case, stream, pause_s)
            if answer is None:
                continue
            if answer.content in self.known[case.name]:
                self.tally.answer(answer.longest_gap_s)
            else:
                self.tally.err(f"{case.name} (stream: {stream}): {answer.content}, expected {self.known[case.name]}")

    def leaving(self, dice: random.Random) -> None:
        """Goes away in the middle."""
        while not self.over.wait(dice.uniform(0.1, 0.6)):
            leave = dice.choice((leave_in_body, leave_in_stream))
            if leave(self.site.target, dice.randint(0, 1000)):
                self.tally.count("left")

    def greedy(self, dice: random.Random) -> None:
        """Asks for what no context holds; a refusal is the right answer."""
        while not self.over.wait(dice.uniform(0.5, 2.0)):
            body = completion(prompt="word " * dice.choice((3_000, 30_000, 300_000)))
            target, mark = self.site.reach()
            answer = send(target, Row("huge", "/v1/completions", body), ANSWER_LIMIT_S)
            if "retry-after" in answer.headers:
                self.tally.count("refused")
            elif answer.status != 400 and not self.site.deaths.may_have_cut(mark):
                self.tally.err(f"a prompt that is too long: {answer.outcome} {answer.body[:200]!r}")

    def talking(self, dice: random.Random) -> None:
        """Talks in sessions, whose turns send all that was said before; pins, forks, rewinds and deletes them."""
        histories: dict[str, list[dict[str, str]]] = {f"s{number}": [] for number in range(4)}
        while not self.over.wait(dice.uniform(0.0, 0.3)):
            name = dice.choice(list(histories))
            history = histories[name]
            if len(history) >= 2 * MOST_TURNS:
                history.clear()
            messages = [*history, {"role": "user", "content": f"Go on with {name}, part {len(history)}. " * 8}]
            body = {
                "messages": messages,
                "session": name,
                "max_tokens": 8,
                "temperature": 0.0,
                "return_token_ids": True,
            }
            said = self._turn(self._session("POST", CHAT, body))
            if said:
                history[:] = [*messages, {"role": "assistant", "content": said}]
            path = f"{SESSIONS}/{name}"
            fork = ("POST", f"{path}/fork", {"name": f"{name}-{dice.randint(0, 3)}"})
            rewind = ("POST", f"{path}/rewind", {"turn": 0})
            pin = ("POST", f"{path}/pin", {})
            self._session(*dice.choice((pin, pin, pin, fork, rewind, ("GET", path, {}), ("DELETE", path, {}))))

    def _turn(self, found: bytes) -> str | None:
        """Compare the answer of a turn with an earlier one to the same tokens; returns its text, None where there is none."""
        if not found:
            return None
        answer = json.loads(found)
        (choice,) = answer["choices"]
        ids = choice["token_ids"]
        if (known := self._turns.setdefault(tuple(answer["prompt_token_ids"]), ids)) != ids:
            self.tally.err(f"a turn of {len(answer['prompt_token_ids'])} tokens: {ids}, expected {known}")
        self.tally.count("turns")
        return str(choice["message"]["content"])

    def end_sessions(self) -> None:
        """Delete all sessions, with their pins.

        One whose file found no room is known to a single API process, so that several lists must be empty.
        """
        num_empty = 0
        for _ in range(MOST_LISTS):
            found = self._session("GET", SESSIONS, {})
            names = [session["id"] for session in json.loads(found)["data"]] if found else []
            num_empty = 0 if names or not found else num_empty + 1
            if num_empty == EMPTY_LISTS:
                # /metrics has the usage of the last step, so there must be one without pins.
                send(self.site.target, Row("a step", "/v1/completions", completion()), ANSWER_LIMIT_S)
                return
            for name in names:
                self._session("DELETE", f"{SESSIONS}/{name}", {})
        self.tally.leak(f"after {MOST_LISTS} lists there are still sessions: {names}")

    def _session(self, method: str, path: str, fields: dict[str, Any]) -> bytes:
        """Ask about a session; returns the answer if it is one. No answer but a failure of the server is wrong."""
        body = b"" if method == "GET" else json.dumps(fields).encode()
        target, mark = self.site.reach()
        answer = send(target, Row(path, path, body, method=method), ANSWER_LIMIT_S)
        if answer.status == 500 or (answer.status <= 0 and not self.site.deaths.may_have_cut(mark)):
            self.tally.err(f"{method} {path}: {answer.outcome} {answer.body[:200]!r}")
        return answer.body if answer.status == 200 else b""

    def _insist(self, case: Case, stream: bool, pause_s: float) -> Answer | None:
        """Ask, again when told to come back or when the server was killed; None when there is no answer."""
        end = time.monotonic() + MOST_S
        while True:
            target, mark = self.site.reach()
            try:
                return ask(target, case, ANSWER_LIMIT_S, stream=stream, pause_s=pause_s)
            except Unanswered as error:
                late = time.monotonic() > end
                if self.site.deaths.may_have_cut(mark) and not late:
                    self.tally.count("cut")
                elif error.retry_after is not None and not late:
                    self.tally.count("refused")
                    time.sleep(min(error.retry_after, 5.0))
                else:
                    self.tally.lose(f"{case.name} (stream: {stream}): {error}"[:400])
                    return None
