"""The card as text and as plain values.

Owns: both forms. Never does: compute a figure. Called by: the command `core bench card`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from core.args.schema import flag_of
from core_commands.card.card import Advice, Round, Row

MOST_SHARE: Final = 1.1
"""Share above which the limits themselves are in doubt; a product can be a little quicker than the one that was measured."""


def as_text(rows: Sequence[Row], advices: Sequence[Advice], rounds: Sequence[Round]) -> str:
    """Return the card for people."""
    lines = [machine(rounds), ""]
    for row in rows:
        if row.ms is None:
            lines.append(f"{row.what}: {row.note}")
            continue
        share = f", {row.share:.0%} of the {row.limit}" if row.share is not None else ""
        note = f" ({row.note})" if row.note else ""
        lines.append(f"{row.what}: {row.ms:.2f} ms{share}{note}")
    if any((row.share or 0.0) > MOST_SHARE for row in rows):
        lines += [
            "",
            "A share above 100%: others used the machine while its limits were measured; repeat it when they rest.",
        ]
    lines += [
        "",
        "What would help, as these figures predict:" if advices else "Nothing of what can be predicted would help.",
    ]
    for each in advices:
        note = f"; {each.note}" if each.note else ""
        lines.append(f"  {flag_of(each.argument)} {each.value}: {each.of} {each.gain:+.0%}{note}")
    lines += [
        "",
        "core tune measures what helps a load; drafts and limits of a batch depend on it and are not predicted.",
    ]
    return "\n".join(lines)


def machine(rounds: Sequence[Round]) -> str:
    """Return the limits of the machine in a line."""
    speeds = sorted(one.limits.bandwidth / 1e9 for one in rounds)
    products = sorted(one.limits.products / 1e9 for one in rounds)
    return (
        f"Memory: {statistics.median(speeds):.1f} GB/s ({speeds[0]:.1f} to {speeds[-1]:.1f}); products of matrices: "
        f"{statistics.median(products):.0f} billion multiplications a second ({products[0]:.0f} to {products[-1]:.0f}), "
        f"medians of {len(rounds)} rounds."
    )


def as_values(model: str, rows: Sequence[Row], advices: Sequence[Advice], rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the card as plain values."""
    found: dict[str, Any] = {
        "model": model,
        "rows": [{name: getattr(row, name) for name in ("what", "ms", "limit", "share", "note")} for row in rows],
        "advice": [
            {name: getattr(each, name) for name in ("argument", "value", "gain", "of", "note")} for each in advices
        ],
        "rounds": [
            {
                "bandwidth": one.limits.bandwidth,
                "products": one.limits.products,
                "seconds": {name: getattr(one.times, name) for name in one.times.__slots__},
            }
            for one in rounds
        ],
    }
    return dict(msgspec.to_builtins(found))
