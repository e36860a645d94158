"""Can a client tell by the clock what another one has sent? Run it: `python -m tests.attack.timing --probes 2000`.

Owns: the attack on the prefix cache of a real server with two API keys, and its figure. Never does: other channels.
Called by: a person (`make attack-timing`).

For each probe the victim sends one of two random prompts, and the attacker times one of them, the same or the other. The
area under the curve (AUC) is the chance that a prompt which the victim did not send takes longer than one that it did: 0.5 is
a coin. The control attacks with the victim's own key, which shows that there is something to be seen.
"""

import argparse
import http.client
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
VICTIM, ATTACKER = "key-of-the-victim", "key-of-the-attacker"
PROMPT_TOKENS = 96
TOKEN_IDS = range(1000, 9000)
MOST_OFF = 0.05
CONTROL_PROBES = 200
START_LIMIT_S = 120.0


class Client:
    """One client with a connection of its own."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}

    def seconds(self, prompt: Sequence[int]) -> float:
        """From the request to the answer, which is one token."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0})
        begin = time.perf_counter()
        self._connection.request("POST", "/v1/completions", body, self._headers)
        answer = self._connection.getresponse()
        data = answer.read()
        taken = time.perf_counter() - begin
        if answer.status != 200:
            raise RuntimeError(f"the server answered {answer.status}: {data[:300]!r}")
        return taken


def random_prompt(draw: random.Random) -> list[int]:
    """A prompt that nobody has sent before."""
    return [draw.choice(TOKEN_IDS) for _ in range(PROMPT_TOKENS)]


def attack(victim: Client, attacker: Client, num_probes: int, seed: int) -> float:
    """The attacker's AUC."""
    draw = random.Random(seed)
    sent: list[float] = []
    not_sent: list[float] = []
    for _ in range(num_probes):
        one, other = random_prompt(draw), random_prompt(draw)
        victim.seconds(one)
        if draw.random() < 0.5:
            sent.append(attacker.seconds(one))
        else:
            not_sent.append(attacker.seconds(other))
    return area(sent, not_sent)


def area(hits: Sequence[float], misses: Sequence[float]) -> float:
    """The chance that a miss takes longer than a hit, ties half: Mann and Whitney's U over the number of pairs."""
    if not hits or not misses:
        raise ValueError("there are not enough probes of both kinds; give more of them")
    ordered = sorted([(value, 0) for value in hits] + [(value, 1) for value in misses])
    total = 0.0
    position = 0
    while position < len(ordered):
        end = position
        while end < len(ordered) and ordered[end][0] == ordered[position][0]:
            end += 1
        mean_rank = (position + 1 + end) / 2
        total += mean_rank * sum(kind for _, kind in ordered[position:end])
        position = end
    least = len(misses) * (len(misses) + 1) / 2
    return (total - least) / (len(hits) * len(misses))


@contextmanager
def serving(arguments: Sequence[str], keys: Sequence[str] = (VICTIM, ATTACKER)) -> Iterator[int]:
    """A server with some keys; gives its port."""
    with tempfile.TemporaryDirectory() as home:
        log = Path(home) / "log"
        command = [sys.executable, "-P", "-m", "core", "serve", "--port", "0", "--max-model-len", "512"]
        command += ["--disable-uvicorn-access-log", *arguments]
        if keys:
            command += ["--api-key", *keys]
        with log.open("wb") as out:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=home, env=environment)
        try:
            yield _port(process, log)
        finally:
            process.terminate()
            process.wait(30)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """The port of a server, once it serves."""
    deadline = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        _, found, rest = text.partition("http://127.0.0.1:")
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        if found and digits:
            return int(digits)
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


def main() -> int:
    """The exit code is 1 when a stranger learns anything, or the control sees nothing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--probes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("arguments", nargs="*", help="further arguments of core serve, behind --")
    given = parser.parse_args()
    with serving(given.arguments) as port:
        victim = Client(port, VICTIM)
        attack(victim, Client(port, ATTACKER), 20, given.seed + 1)  # the first steps are slow
        stranger = attack(victim, Client(port, ATTACKER), given.probes, given.seed)
        control = attack(victim, Client(port, VICTIM), CONTROL_PROBES, given.seed + 2)
    deviation = 1.0 / math.sqrt(3.0 * given.probes)
    print(f"AUC with another key: {stranger:.3f} ({given.probes} probes, standard deviation of a coin {deviation:.3f})")
    print(f"AUC with the same key: {control:.3f} ({CONTROL_PROBES} probes)")
    return int(abs(stranger - 0.5) > MOST_OFF or control < 0.9)


if __name__ == "__main__":
    sys.exit(main())
