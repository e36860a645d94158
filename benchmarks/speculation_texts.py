"""Prompts for speculation, never the same one twice: a file to edit, records to go on with, prose to go on with.

Owns: the texts. Never does: load a tokenizer. Called by: `benchmarks.speculation`.
"""

from __future__ import annotations

import random
from pathlib import Path

KINDS = {
    "edit": "a Python file to give back with one name changed",
    "records": "JSON records to go on with",
    "prose": "a story to go on with, where drafts from earlier text fail",
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
EDIT = """<|im_start|>user
Rename the method `find` to `lookup` in this file and give the whole file back.
```python
{source}```<|im_end|>
<|im_start|>assistant
```python
class {Name}Store:
"""
PROSE = Path(__file__).with_name("prose.txt")


def prompt(kind: str, number: int) -> str:
    """The prompt of a kind with this number, ready for the model."""
    rng = random.Random(f"{kind} {number}")
    return {"edit": edit, "records": records, "prose": prose}[kind](rng)


def edit(rng: random.Random) -> str:
    """A class whose names nobody has used before."""
    name = rng.choice(NAMES.split(",")) + rng.choice(NAMES.split(",")).capitalize()
    key, value = rng.sample(FIELDS.split(","), 2)
    names = {"name": name, "Name": name[0].upper() + name[1:], "key": key, "value": value}
    source = CLASS.format(limit=rng.randrange(10, 1000), **names)
    return EDIT.format(source=source, **names)


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
