"""What the API process computes for a streamed token: its processor time, without the engine's.

Owns: that measurement. Processor time is what counts, not the clock, so neighbours and the engine's speed matter little.
Called by: `python -m benchmarks.api_process`. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.startup import Server, ServerError, core_server
from core_commands.bench.load import Outcome, Shape, send_all
from core_commands.bench.workload import Prompt
from core_commands.client.http_endpoint import HttpEndpoint

PATHS = ("/v1/completions", "/v1/chat/completions")
AT_ONCE = (1, 16, 64)
TOKENS = 8192
"""Of each measurement, about: some hundred ticks of the kernel's clock."""
LONGEST_ANSWER = 512
RATE = 1000
"""Tokens a second for which the share of a processor is told."""


class Measured(msgspec.Struct):
    """One measurement. cpu_s: of the API process. tokens: that were streamed."""

    path: str
    at_once: int
    cpu_s: float
    tokens: int

    @property
    def microseconds(self) -> float:
        """Processor time for a token."""
        return 1e6 * self.cpu_s / self.tokens


def cpu_seconds(pid: int) -> float:
    """Processor time that all threads of a process have taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def measure(server: Server, path: str, at_once: int, fields: dict[str, object]) -> Measured:
    """Stream `TOKENS` tokens, some answers at once. fields: further ones of each body. Raises ServerError."""
    length = min(LONGEST_ANSWER, TOKENS // at_once)
    prompts = [Prompt(f"Tell a long story about number {number}.", length) for number in range(TOKENS // length)]
    endpoint = HttpEndpoint(server.base)
    shape = Shape(path, {"model": server.model, "temperature": 0, "ignore_eos": True, **fields}, {})
    try:
        before = cpu_seconds(server.pid)
        outcomes, _ = await send_all(endpoint, shape, prompts, [0.0] * len(prompts), at_once)
        after = cpu_seconds(server.pid)
    finally:
        await endpoint.close()
    return Measured(path, at_once, after - before, _num_tokens(outcomes))


def _num_tokens(outcomes: Sequence[Outcome]) -> int:
    """Of all answers. Raises ServerError where one failed."""
    for outcome in outcomes:
        if outcome.error:
            raise ServerError(outcome.error)
    return sum(outcome.output_tokens for outcome in outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.api_process", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", help="model reference; the embedded default when left out")
    parser.add_argument("--at-once", type=int, nargs="+", default=AT_ONCE, help="answers at the same time")
    parser.add_argument("--logprobs", action="store_true", help="ask for five alternatives of each token too")
    parser.add_argument("arguments", nargs="*", help="for `core serve`, after --")
    options = parser.parse_args()
    print("path                    at once   us a token   of a processor at 1,000 tokens/s")
    with core_server(options.model, ["--max-num-seqs", "64", *options.arguments]) as server:
        for path in PATHS:
            asked = {"logprobs": True, "top_logprobs": 5} if "chat" in path else {"logprobs": 5}
            fields: dict[str, object] = dict(asked) if options.logprobs else {}
            for at_once in options.at_once:
                found = asyncio.run(measure(server, path, at_once, fields))
                share = RATE * found.cpu_s / found.tokens
                print(f"{path:<22} {at_once:>8} {found.microseconds:>12.0f} {share:>12.1%}", flush=True)


if __name__ == "__main__":
    main()
