"""Workloads of `benchmarks.sizes`: so many streams behind prompts of so many tokens.

Owns: their names, and which scenario a figure belongs to. Never does: run them. Called by: the measurements, the report.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

SCENARIOS = {
    "s10": "prefill of one prompt",
    "s11": "decode of one stream",
    "s12": "decode of 4 streams",
    "s13": "decode of 16 streams",
    "s14": "start",
    "s15": "peak memory",
}
FULL = "128x1,1kx1,8kx1,32kx1,128x4,128x16,8kx4,8kx16"
QUICK = "128x1,1kx1,128x4"
NAME = re.compile(r"(\d+)(k?)x(\d+)")
WARM_PROMPT = 1024
FIRST_TOKEN = 300
"""Prompts have none of the first ids, where special tokens may lie."""


@dataclass(frozen=True, slots=True)
class Row:
    """streams: requests at once, each with a prompt of `prompt` tokens of its own, and `out` further tokens each."""

    name: str
    prompt: int
    streams: int
    out: int

    @property
    def tokens(self) -> int:
        """Tokens in the cache at the end."""
        return self.streams * (self.prompt + self.out + 1)

    def warm_up(self) -> Row:
        """Return what runs before the row and is not timed: as many streams, with prompts of at most 1,024 tokens."""
        return Row(f"{self.name} warm-up", min(self.prompt, WARM_PROMPT), self.streams, self.out)

    def prompts(self, vocabulary: int, seed: int) -> list[list[int]]:
        """Return prompts of random tokens, others for every seed."""
        draw = random.Random(f"{self.name} {seed}")
        return [[draw.randrange(FIRST_TOKEN, vocabulary) for _ in range(self.prompt)] for _ in range(self.streams)]


def parse(text: str, out: int) -> list[Row]:
    """Return the rows named in `128x1,8kx16`: tokens of a prompt, streams. Raises ValueError for another form."""
    found = []
    for name in filter(None, (word.strip() for word in text.split(","))):
        match = NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"the row {name!r} is not understood; expected TOKENSxSTREAMS, such as 128x1 or 8kx16")
        tokens = int(match[1]) * (1024 if match[2] else 1)
        found.append(Row(name, tokens, int(match[3]), out))
    return found
