"""Random texts in many scripts, the same ones on every machine: what digests of token ids are taken of."""

import hashlib
import random
from collections.abc import Iterable, Sequence

SCRIPTS = [
    (0x61, 0x7A), (0x41, 0x5A), (0xC0, 0x17F), (0x391, 0x3A1), (0x3B1, 0x3C9), (0x410, 0x44F), (0x531, 0x556),
    (0x5D0, 0x5EA), (0x627, 0x64A), (0x905, 0x939), (0x985, 0x98C), (0xE01, 0xE30), (0x10D0, 0x10F0), (0x1200, 0x1248),
    (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x20000, 0x2A6D6), (0x1D400, 0x1D454),
]  # fmt: skip
MARKS = [*range(0x300, 0x320), 0x5B0, 0x64B, 0x93E, 0x94D, 0xE31, 0xE48, 0x200D, 0x200C, 0xFE0F]
SPACES = [" ", "  ", "   ", " " * 7, "\n", "\n\n", "\r\n", "\t", "\t\t", " \n "]
SPACES += ["\u00a0", "\u3000", "\u2028", "\u200b", "\ufeff"]
EMOJI = ["😀", "👩‍👩‍👧", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "🧿", "1️⃣"]
CONTROLS = ["\x00", "\x01", "\x07", "\x1b[0m", "\x7f", "\x85", "\u202e", "\ue000", "\ufffd", "\uffff"]
CODE = [
    "def f(x):\n    return x**2", "#include <stdio.h>", "it's I'LL we'Ve", "a->b[i] != c", "<b> </i> <unknown>",
    "e = mc²; ½ ① Ⅷ ﬁ", "https://a.b/c?d=e&f=%20", "...!?--,", "»«„“", "$9.99", "\\n\\t", "▁▁a▁", "<0x4",
    "İstanbul ſ K",
]  # fmt: skip


def random_text(source: random.Random) -> str:
    """Up to twelve pieces, each of its own kind."""
    return "".join(_piece(source) for _ in range(source.randint(1, 12)))


def random_texts(count: int, seed: int = 0) -> list[str]:
    source = random.Random(seed)
    return [random_text(source) for _ in range(count)]


def _piece(source: random.Random) -> str:
    kind = source.randrange(12)
    if kind < 5:
        low, high = source.choice(SCRIPTS) if kind else SCRIPTS[0]
        word = "".join(chr(source.randint(low, high)) for _ in range(source.randint(1, 8)))
        return word + source.choice(["", " ", " "])
    if kind == 5:
        return source.choice(["the ", "and ", " of ", "ing ", "hello world ", "token ", "Straße ", "日本語", "привет "])
    if kind == 6:
        return source.choice(SPACES) * source.randint(1, 3)
    if kind == 7:
        return str(source.randrange(10 ** source.randint(1, 12)))
    if kind == 8:
        return source.choice(EMOJI)
    if kind == 9:
        return source.choice("aeé가") + chr(source.choice(MARKS)) * source.randint(1, 2)
    if kind == 10:
        return source.choice(CONTROLS)
    return source.choice(CODE)


BLOCK = 100
"""Texts of one digest."""


def digests(rows: Iterable[Sequence[int]]) -> list[str]:
    """One for each block of rows of token ids, short: sixteen digits tell that two blocks differ."""
    found = []
    block: list[list[int]] = []
    for row in rows:
        block.append(list(row))
        if len(block) == BLOCK:
            found.append(hashlib.sha256(repr(block).encode()).hexdigest()[:16])
            block = []
    return found
