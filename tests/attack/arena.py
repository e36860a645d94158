"""What all phases share: where servers live, the seed, progress lines, the tokens that must stay the same.

Owns: starting servers for phases, or lending the one of `--url`. Never does: attack.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tests.attack.metronome import Metronome
from tests.attack.results import Clock, Phase
from tests.attack.row import Answer
from tests.attack.send import Target, send
from tests.attack.server import ARGUMENTS, TOKENS, Server, running
from tests.attack.slow import SlowCallback

TOKENS_LIMIT_S = 15.0
SHOWN = 20
"""Slow callbacks that the report names."""


class Arena:
    """One attack. home: a directory of ours alone. given: a server that runs already. metronome: stalls of this machine."""

    def __init__(
        self,
        home: Path,
        seed: int = 0,
        given: Target | None = None,
        out: TextIO = sys.stdout,
        metronome: Metronome | None = None,
    ) -> None:
        self.home = home
        self.random = random.Random(seed)
        self.given = given
        self.out = out
        self.begin = time.monotonic()
        self.tokens: list[int] = []
        self.last_said = 0.0
        self.metronome = metronome or Metronome()
        self.slow_callbacks: list[SlowCallback] | None = None
        self.unnamed_callbacks = 0

    def say(self, phase: str, text: str, *, often: bool = False) -> None:
        """A progress line; one that comes often is printed every two seconds."""
        now = time.monotonic()
        if not often or now - self.last_said > 2:
            self.last_said = now
            print(f"{now - self.begin:6.1f} s  {phase:12} {text}", file=self.out, flush=True)

    @contextmanager
    def target(self, **options: Any) -> Iterator[tuple[Target, Server | None]]:
        """A server to attack, with its process when it is ours."""
        if self.given is not None:
            yield self.given, None
            return
        with self.server(**options) as server:
            yield server.target, server

    @contextmanager
    def server(self, **options: Any) -> Iterator[Server]:
        """A server of our own."""
        with running(self.home, **options) as server:
            try:
                yield server
            finally:
                named, unnamed = server.slow_callbacks()
                self.slow_callbacks = [*(self.slow_callbacks or ()), *named]
                self.unnamed_callbacks += unnamed

    def check_callbacks(self, phase: Phase) -> None:
        """No callback of an event loop took longer than it may, of the servers that have ended since the last time.

        Time in which the machine stood still is none of a callback's (see `tests.attack.metronome`); the note tells it.
        """
        found, unnamed = self.slow_callbacks, self.unnamed_callbacks
        self.slow_callbacks, self.unnamed_callbacks = None, 0
        if found is None:
            return
        limit = float(ARGUMENTS["max_callback_ms"]) / 1000
        own = [(callback.own_seconds(self.metronome), callback.text) for callback in found]
        slow = sum(seconds > limit for seconds, _ in own) + unnamed
        phase.check(f"callbacks over {limit * 1000:g} ms", not slow, slow, 0, f"{unnamed} unnamed" if unnamed else "")
        said = [f"{text} Without the machine's own stalls: {seconds * 1000:.1f} ms." for seconds, text in own]
        phase.notes += list(dict.fromkeys(said))[:SHOWN]

    def each(self, phase: Phase, steps: Mapping[str, Callable[[], None]], clock: Clock) -> None:
        """Do the steps that there is time for; one whose server does not start is a failed check."""
        for number, (name, step) in enumerate(steps.items()):
            if not clock.left:
                phase.notes.append(f"No time was left for: {', '.join(list(steps)[number:])}.")
                return
            try:
                step()
            except RuntimeError as error:
                phase.check(f"the server starts: {name}", False, str(error)[-300:], "it serves")
            self.say(phase.name, f"{number + 1} of {len(steps)}: {name}")

    def check_tokens(self, phase: Phase, target: Target, when: str = "afterwards") -> None:
        """The same greedy request gives the tokens that it gave the first time."""
        answer = send(target, TOKENS, TOKENS_LIMIT_S)
        tokens = token_ids(answer)
        self.tokens = self.tokens or tokens
        value = f"{len(tokens)} tokens" if tokens else f"{answer.outcome}"
        good = bool(tokens) and tokens == self.tokens
        phase.check(f"the same tokens {when}", good, value, "those of the first time")


def token_ids(answer: Answer) -> list[int]:
    """The token ids of a completion; none when there are none."""
    try:
        return list(json.loads(answer.body)["choices"][0]["token_ids"])
    except (ValueError, LookupError, TypeError):
        return []
