"""Errors and what to do about them, as a page: `python -m tests.docs.errors > docs/troubleshooting.md`.

Owns: the rows of `errors.toml` and the text of docs/troubleshooting.md. Never does: provoke an error, or write a file.
Called by: a person, and the test of the page.
"""

import tomllib
from functools import cache
from pathlib import Path

import msgspec

ROWS = Path(__file__).with_name("errors.toml")

_INTRO = """# Troubleshooting

Generated from `tests/docs/errors.toml` by `python -m tests.docs.errors`; do not edit. Search the page for a few words of
the message. `…` stands for what differs from case to case. Each message here was provoked by a test, and its words compared.

Every message names the argument, field or file, its value, what was expected, and a way out. Start with
`core config explain MODEL …`: it resolves the arguments of `core serve` without loading a weight, and shows where each value
comes from. For a report, add the output of `core collect-env`. What happens when the engine dies is told in
[failures.md](failures.md), and why an answer took its time in [explain.md](explain.md)."""


class Error(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A row of the file; its first lines say what the fields are."""

    words: str
    why: str
    do: str
    page: str
    arguments: str = ""
    damage: str = ""
    request: str = ""
    command: str = ""
    json: str = ""
    text: str = ""
    headers: str = ""

    def is_in(self, message: str) -> bool:
        """Whether a message has all pieces of the words, in their order."""
        at = 0
        for piece in self.words.split("…"):
            found = message.find(piece.strip(), at)
            if found < 0:
                return False
            at = found + len(piece.strip())
        return True


class Area(msgspec.Struct, forbid_unknown_fields=True):
    """Errors of one kind of situation."""

    name: str
    error: list[Error]


@cache
def areas() -> list[Area]:
    """All of them, in the order of the file. Raises msgspec.ValidationError for a row with another field."""
    document = tomllib.loads(ROWS.read_text(encoding="utf-8"))
    return msgspec.convert(document["area"], list[Area])


def document() -> str:
    """The whole page, with a newline at its end."""
    parts = [_INTRO]
    for area in areas():
        parts.append(f"## {area.name}")
        parts += [f"**`{row.words}`**  \n{row.why} {row.do} ([{row.page}]({row.page}))" for row in area.error]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(document(), end="")
