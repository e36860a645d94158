"""Seeded prompts with an exact number of tokens, never the same one twice.

Owns: the text and how it is cut. Never does: load a tokenizer; the caller brings `encode`.
Called by: the other benchmarks.
"""

from __future__ import annotations

import random
from collections.abc import Callable

SENTENCES = 2500

WORDS = {
    "name": "Anna,Boris,Chen,Dalia,Emil,Farah,Goran,Hana,Ivo,Jun,Kira,Luis,Mina,Noor,Otto,Priya,Quinn,Rosa,Sami,Tove",
    "job": "baker,pilot,nurse,farmer,painter,lawyer,sailor,tailor,miner,poet,judge,barber,clerk,diver,chemist",
    "verb": "repaired,bought,measured,described,borrowed,painted,forgot,carried,counted,sold,returned,inspected",
    "thing": "clocks,ladders,pianos,lanterns,bicycles,maps,kettles,violins,telescopes,blankets,engines,baskets,mirrors",
    "place": "harbour,library,station,orchard,workshop,museum,kitchen,valley,market,theatre,tunnel,island",
    "time": "before dawn,after lunch,in late autumn,on a rainy Tuesday,during the festival,once a year,at midnight",
}


class PromptMaker:
    """Cuts prompts out of one long seeded text. encode: text to token ids, without special tokens."""

    def __init__(self, encode: Callable[[str], list[int]], seed: int = 0) -> None:
        rng = random.Random(seed)
        self._tokens = encode(" ".join(sentence(rng) for _ in range(SENTENCES)))
        self._starts = list(range(len(self._tokens)))
        rng.shuffle(self._starts)

    def prompt(self, length: int) -> list[int]:
        """`length` tokens that no earlier prompt started with."""
        start = self._starts.pop()
        twice = self._tokens + self._tokens[:length]
        return twice[start : start + length]

    def batch(self, count: int, length: int, shared: int = 0) -> list[list[int]]:
        """`count` prompts of `length` tokens of their own, after `shared` tokens that they have in common."""
        prefix = self.prompt(shared) if shared else []
        return [prefix + self.prompt(length) for _ in range(count)]


def sentence(rng: random.Random) -> str:
    """About 18 tokens."""
    word = {kind: rng.choice(words.split(",")) for kind, words in WORDS.items()}
    number = rng.randint(2, 99)
    return "{name} the {job} {verb} {number} {thing} near the {place} {time}.".format(number=number, **word)
