"""What agents do: turns with new tool outputs, forks, several at once, and turns after a `kill -9`.

Owns: histories and the order of turns. Never does: start a peer, or keep figures. Called by: the command.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from benchmarks.agents.client import Turn, ask
from benchmarks.agents.servers import Place, Server, serve

TURN, ANSWER, FORKS, AGENTS = 1400, 64, 3, 8
"""Tokens that a turn adds, how many of them the answer has, forks of the agent, and agents at once."""
FIRST_ID, LAST_ID = 300, 40000
"""Range of the random token ids of prompts, in which every model has ordinary tokens."""
PAUSE_S = 2.0
"""Between an answer and the kill."""
Figures = dict[str, float]


class Agent:
    """A history that grows."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self.history: list[int] = []

    def new(self, count: int) -> list[int]:
        """Return new token ids, which stand for a tool's output."""
        return [self._random.randrange(FIRST_ID, LAST_ID) for _ in range(count)]

    def turn(self, server: Server, count: int = TURN - ANSWER, answer: int = ANSWER) -> Turn:
        """Send the history with new tokens at its end; both these and the answer are history then."""
        known = len(self.history)
        prompt = self.history + self.new(count)
        turn = ask(server.port, server.native, prompt, known, answer)
        self.history = prompt + turn.ids
        return turn

    def fork(self, seed: str) -> Agent:
        """Return another agent with the same history."""
        other = Agent(seed)
        other.history = list(self.history)
        return other


def run_one(server: Server, turns: int, seed: str) -> Iterator[tuple[str, Figures]]:
    """One agent's turns, then one turn of each fork, one after the other."""
    warm_up(server, seed)
    agent = Agent(seed)
    for _ in range(turns):
        yield "one", agent.turn(server).figures()
    for number in range(FORKS):
        yield "fork", agent.fork(f"{seed} fork {number}").turn(server).figures()


def run_several(server: Server, turns: int, seed: str) -> Iterator[tuple[str, Figures]]:
    """All agents' turns at once; each waits for the slowest before its next one."""
    agents = [Agent(f"{seed} {number}") for number in range(AGENTS)]
    with ThreadPoolExecutor(AGENTS) as pool:
        for _ in range(turns):
            for turn in pool.map(lambda agent: agent.turn(server), agents):
                yield "several", turn.figures()


def run_kills(model: str, place: Place, turns: int, seed: str) -> Iterator[tuple[str, Figures]]:
    """The turn after a `kill -9`: of the server with a disk and with shared memory, of the engine with `--keep-kv`."""
    with tempfile.TemporaryDirectory(prefix="agents-disk-") as disk:
        yield "disk", after_server(model, place, ("--kv-offloading-disk-path", disk), turns, seed)
    with tempfile.TemporaryDirectory(prefix="agents-shm-", dir="/dev/shm") as shm:
        extra = ("--kv-connectors", "shm", "--kv-connectors-config.shm.directory", shm)
        yield "shm", after_server(model, place, extra, turns, seed)
    yield "engine, nothing kept", after_engine(model, place, (), turns, seed)
    yield "engine, --keep-kv", after_engine(model, place, ("--keep-kv",), turns, seed)


def after_server(model: str, place: Place, extra: tuple[str, ...], turns: int, seed: str) -> Figures:
    """Kill the server PAUSE_S after an answer, start another, and send the next turn."""
    agent = Agent(f"{seed} {extra[0]}")
    with serve("core", model, place, extra) as server:
        grow(agent, server, turns)
        time.sleep(PAUSE_S)
        server.kill()
    with serve("core", model, place, extra) as server:
        return agent.turn(server).figures() | {"start": server.start_seconds}


def after_engine(model: str, place: Place, extra: tuple[str, ...], turns: int, seed: str) -> Figures:
    """Kill the engine PAUSE_S after an answer and send the next turn. pause: until a short prompt has its first token."""
    agent = Agent(f"{seed} engine")
    with serve("core", model, place, extra) as server:
        grow(agent, server, turns)
        time.sleep(PAUSE_S)
        server.kill_engine()
        pause = Agent(f"{seed} pause").turn(server, 16, 1).ttft
        return agent.turn(server).figures() | {"pause": pause}


def grow(agent: Agent, server: Server, turns: int) -> None:
    """Give an agent as many tokens as so many turns have, in one turn and a usual one."""
    if turns > 1:
        agent.turn(server, (turns - 1) * TURN - 1, 1)
    agent.turn(server)


def warm_up(server: Server, seed: str) -> None:
    """Send two turns of another agent: the first step of each shape builds what later ones use."""
    other = Agent(f"{seed} warm-up")
    other.turn(server)
    other.turn(server)
