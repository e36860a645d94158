"""The commands `core serve` and `core chat` of all pages, as their readers would type them.

Owns: how commands are found in blocks of bash. Never does: run one. Called by test_page_commands.py.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.layout import ROOT

BLOCK = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENDS = re.compile(r"&&|\|\||[|;&<>]")


def pages() -> list[Path]:
    """Return every page of the repository that readers follow."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands_of(text: str, verb: str = "serve") -> Iterator[list[str]]:
    """Yield the words behind `core VERB` of each command in the blocks of a page; comments are left out."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if not ENDS.match(word):
                    words.append(word)
                    continue
                yield from _behind(words, verb)
                words = []


def _behind(words: list[str], verb: str) -> Iterator[list[str]]:
    """Yield what follows `core VERB`, which may stand behind variables and other commands."""
    for place, pair in enumerate(itertools.pairwise(words)):
        if pair[0].rpartition("/")[2] == "core" and pair[1] == verb:
            yield words[place + 2 :]
            return
