"""Prompts for speculation: a file to edit, records to go on with, prose to go on with; each number gives another one.

Owns: the texts. Never does: load a tokenizer. Called by: `benchmarks.speculation`.
"""

from __future__ import annotations

import random
from pathlib import Path

KINDS = {
    "edit": "a Python file to write again with one name changed",
    "records": "JSON records to go on with",
    "prose": "a story to go on with",
}
NAMES = (
    "order,ticket,parcel,member,lesson,engine,recipe,garden,camera,letter,bridge,planet,wallet,museum,signal,harvest"
)
FIELDS = "weight,colour,height,status,owner,place,count,price,label,rating,origin,volume,length,number,season,branch"
TOWNS = "Oslo,Cairo,Quito,Hanoi,Turin,Dakar,Perth,Lima,Riga,Sofia,Tunis,Bern,Kyoto,Accra,Porto,Graz"

CLASS = '''class {Name}Store:
    """Keeps every {name} by its {key}."""

    def __init__(self, limit={limit}):
        self.limit = limit
        self.{name}s = {{}}

    def add(self, {key}, {value}):
        """Add a {name}; the oldest one goes when there are too many."""
        if len(self.{name}s) >= self.limit:
            oldest = next(iter(self.{name}s))
            del self.{name}s[oldest]
        self.{name}s[{key}] = {value}

    def find(self, {key}):
        """The {value} of a {name}, or None."""
        return self.{name}s.get({key})

    def total(self):
        """The sum of every {value}."""
        result = 0
        for {key}, {value} in self.{name}s.items():
            result += {value}
        return result
'''
EDIT = """# old
{source}
# new: find is called lookup
{edited}
"""
FIRST_LINES = 4
"""Of the edited file, which the model is given."""
PROSE = Path(__file__).with_name("prose.txt")


def prompt(kind: str, number: int) -> str:
    """The prompt of a kind with this number, plain text that the model goes on with."""
    rng = random.Random(f"{kind} {number}")
    return {"edit": edit, "records": records, "prose": prose}[kind](rng)


def edit(rng: random.Random) -> str:
    """A class before and after a method was renamed, then another one of which the beginning was written again."""
    first = source(rng)
    second = source(rng)
    done = EDIT.format(source=first, edited=renamed(first))
    beginning = "\n".join(renamed(second).splitlines()[:FIRST_LINES])
    return done + EDIT.format(source=second, edited=beginning).rstrip()


def source(rng: random.Random) -> str:
    """A class whose names hardly any other one has."""
    name = rng.choice(NAMES.split(",")) + rng.choice(NAMES.split(",")).capitalize()
    key, value = rng.sample(FIELDS.split(","), 2)
    limit = rng.randrange(10, 1000)
    return CLASS.format(name=name, Name=name[0].upper() + name[1:], key=key, value=value, limit=limit)


def renamed(text: str) -> str:
    """The class after the edit."""
    return text.replace("def find(", "def lookup(")


def records(rng: random.Random) -> str:
    """Some records of one form."""
    name = rng.choice(NAMES.split(","))
    fields = rng.sample(FIELDS.split(","), 3)
    lines = []
    for number in range(1, 7):
        town = rng.choice(TOWNS.split(","))
        values = ", ".join(f'"{field}": {rng.randrange(1, 9)}' for field in fields)
        lines.append(f'{{"{name}": {number}, "town": "{town}", {values}}}')
    return "\n".join(lines) + "\n"


def prose(rng: random.Random) -> str:
    """Two paragraphs of the story, which begin somewhere."""
    paragraphs = PROSE.read_text(encoding="utf-8").split("\n\n")
    begin = rng.randrange(len(paragraphs) - 1)
    words = "\n\n".join(paragraphs[begin : begin + 2]).split(" ")
    first = rng.randrange(20)
    return " ".join(words[first : first + 200])
