"""The picture of the report: each ratio as a bar on a logarithmic axis, with a tick at its target.

Owns: the drawing, as SVG text without any library. Never does: compute ratios. Called by: `benchmarks.peers`.
A ratio that should be small (seconds, latencies, memory) is drawn inverted, so that longer is better everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.peer.results import Results
from benchmarks.peer.targets import Target

LABEL_WIDTH, BAR_WIDTH, ROW, TOP, NUMBER_WIDTH = 330, 420, 20, 52, 60
MET, MISSED, TICK, GRID = "#2a7f62", "#c4622d", "#222222", "#d5d5d5"


@dataclass(frozen=True, slots=True)
class Bar:
    """advantage: how many times better ours is; wanted: how many times better it should be."""

    label: str
    advantage: float
    wanted: float


def bars(results: Results, targets: Sequence[Target]) -> list[Bar]:
    """One for each target that was measured."""
    found = []
    for target in targets:
        ratio = results.ratio((target.scenario, target.ours), (target.scenario, target.theirs), target.figure)
        if not ratio:
            continue
        label = f"{target.scenario.upper()} {target.figure}: {target.ours.removeprefix('core ')} / {target.theirs}"
        better = (1 / ratio, 1 / target.bound) if target.at_most else (ratio, target.bound)
        found.append(Bar(label, *better))
    return found


def svg(found: Sequence[Bar]) -> str:
    """The picture; a note when there is nothing to show."""
    values = [value for bar in found for value in (bar.advantage, bar.wanted)] or [1.0]
    low, high = min(0.5, *values), max(2.0, *values)
    span = math.log(high * 1.1 / low)

    def x(value: float) -> float:
        return LABEL_WIDTH + BAR_WIDTH * math.log(value / low) / span

    width, height = LABEL_WIDTH + BAR_WIDTH + NUMBER_WIDTH, TOP + ROW * max(1, len(found)) + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<text x="10" y="20" font-size="14" font-weight="bold">How many times better core is (longer is better; '
        "the black tick is the target)</text>",
    ]
    for mark in marks(low, high):
        bold = ' stroke-width="2"' if mark == 1 else ""
        lines.append(
            f'<line x1="{x(mark):.1f}" y1="{TOP - 6}" x2="{x(mark):.1f}" y2="{height - 12}" stroke="{GRID}"{bold}/>'
        )
        lines.append(f'<text x="{x(mark):.1f}" y="{TOP - 10}" text-anchor="middle" fill="#666">{mark:g}×</text>')
    for index, bar in enumerate(found):
        lines += row(bar, TOP + ROW * index, x)
    return "\n".join([*lines, "</svg>"]) + "\n"


def row(bar: Bar, y: float, x) -> list[str]:
    """One bar, its label, its number and its target."""
    start, end = sorted((x(1.0), x(bar.advantage)))
    colour = MET if bar.advantage >= bar.wanted else MISSED
    goal = x(bar.wanted)
    return [
        f'<text x="{LABEL_WIDTH - 8}" y="{y + 13}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{start:.1f}" y="{y + 3}" width="{max(end - start, 1):.1f}" height="{ROW - 6}" fill="{colour}"/>',
        f'<line x1="{goal:.1f}" y1="{y + 1}" x2="{goal:.1f}" y2="{y + ROW - 1}" stroke="{TICK}" stroke-width="2"/>',
        f'<text x="{max(end, goal) + 6:.1f}" y="{y + 14}" fill="#333">{bar.advantage:.2f}</text>',
    ]


def marks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten within the axis."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [round(mark, 6) for mark in every if low <= mark <= high * 1.1]
