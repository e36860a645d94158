"""The overview of all commands, for `core --help`.

Owns: its rows. Never does: import a command of another package. Called by: `core.commands.main`, completion.
"""

from __future__ import annotations

from core.args.show import Section
from core.commands.finding import GROUP, own_commands, spoken
from core.commands.table import KNOWN
from core.entry_points import offers


def overview(first: str = "") -> list[Section]:
    """Return help about all commands, or about those of two words that begin with `first`.

    Commands of other packages have a section of their own.
    """
    rows: list[tuple[str, str]] = []
    for name, command in own_commands().items():
        if not first or name.startswith(f"{first}."):
            rows += [(f"{spoken(name)} {words}".strip(), text) for words, text in command.usages]
    others: list[tuple[str, str]] = []
    for offer in offers(GROUP):
        if offer.distribution not in KNOWN.values() and (not first or offer.name.startswith(f"{first}.")):
            head = spoken(offer.name)
            others.append((head, f"From {offer.distribution} {offer.version}: core {head} --help."))
    if not first:
        rows.append(("--version", "The version."))
    sections = [Section("Commands", tuple(rows))]
    return [*sections, Section("Commands of other packages", tuple(sorted(others)))] if others else sections
