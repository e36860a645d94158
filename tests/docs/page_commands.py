"""The commands of all pages that begin with `core`, as their readers would type them.

Owns: how commands are found in blocks of bash. Never does: run one. Called by test_page_commands.py.
"""

from __future__ import annotations

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
    for first, *words in all_commands(text):
        if first == verb:
            yield words


def all_commands(text: str) -> Iterator[list[str]]:
    """Yield the words behind `core` of each command in the blocks of a page, at least one."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if not ENDS.match(word):
                    words.append(word)
                    continue
                yield from _behind(words)
                words = []


def _behind(words: list[str]) -> Iterator[list[str]]:
    """Yield what follows `core`, which may stand behind variables and other commands; to kubectl it names something else."""
    if words[:1] == ["kubectl"]:
        return
    for place, word in enumerate(words[:-1], 1):
        if word.rpartition("/")[2] == "core":
            yield words[place:]
            return
