"""The rows of a report, and their table.

Owns: their form. Never does: measure. Called by: all of the lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One figure, or the sentence of a measurement that has none.

    name: of the measurement. what: was measured, or the reason why there is no value.
    share: of the ceiling `of`; goal: for the share or the value, as text.
    failed: whether something is wrong, not only absent; a row without a value is, unless it says otherwise.
    """

    name: str
    what: str
    value: float | None = None
    unit: str = ""
    share: float | None = None
    of: str = ""
    goal: str = ""
    is_fine: bool = False

    @property
    def failed(self) -> bool:
        """Whether somebody should look."""
        return self.value is None and not self.is_fine


def table(rows: Sequence[Row]) -> str:
    """Return rows as Markdown."""
    lines = ["| measurement | what | value | share | goal |", "|---|---|---|---|---|"]
    for row in rows:
        value = "" if row.value is None else f"{row.value:.4g} {row.unit}"
        share = "" if row.share is None else f"{row.share:.0%} of {row.of}"
        what = f"**{row.what}**" if row.failed else row.what
        lines.append(f"| {row.name} | {what} | {value} | {share} | {row.goal} |")
    return "\n".join(lines) + "\n"
