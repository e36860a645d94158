"""A distribution of measured times as a small SVG: a histogram on a logarithmic axis, with the limit as a line."""

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 96, 8, 20, 22
BINS = 64
LOW_MS, HIGH_MS = 0.1, 30_000.0
MARKS_MS = (0.1, 1, 10, 100, 1000, 10_000)


def histogram(title: str, seconds: Sequence[float], limit_s: float | None = None) -> str:
    """The picture of one series; a limit is drawn when there is one."""
    counts = [0] * BINS
    for value in seconds:
        counts[min(BINS - 1, int(_place(value * 1000) * BINS))] += 1
    most = max(counts, default=1) or 1
    floor = HEIGHT - BOTTOM
    step = (WIDTH - 2 * LEFT) / BINS
    words = f"{title}: {len(seconds)} measured" + (f", largest {max(seconds) * 1000:.1f} ms" if seconds else "")
    lines = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(words)}">',
        f'<text class="title" x="{LEFT}" y="13">{escape(words)}</text>',
    ]
    for mark in MARKS_MS:
        x = _x(mark)
        label = f"{mark:g} ms" if mark < 1000 else f"{mark / 1000:g} s"
        lines.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{floor}"/>')
        lines.append(f'<text class="mark" x="{x + 2:.1f}" y="{HEIGHT - 6}">{label}</text>')
    for index, count in enumerate(counts):
        if count:
            # A single slow one must be seen beside thousands of fast ones, so heights are logarithmic too.
            tall = (floor - TOP) * math.log1p(count) / math.log1p(most)
            x = LEFT + index * step
            over = limit_s is not None and x + step > _x(limit_s * 1000)
            lines.append(
                f'<rect class="{"over" if over else "bar"}" x="{x:.1f}" y="{floor - max(tall, 2):.1f}" '
                f'width="{step - 1:.1f}" height="{max(tall, 2):.1f}"><title>{count}</title></rect>'
            )
    if limit_s is not None:
        x = _x(limit_s * 1000)
        lines.append(f'<line class="limit" x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{floor}"/>')
    return "\n".join([*lines, "</svg>"])


def _place(milliseconds: float) -> float:
    """0 to 1 along the axis."""
    inside = min(max(milliseconds, LOW_MS), HIGH_MS)
    return math.log(inside / LOW_MS) / math.log(HIGH_MS / LOW_MS)


def _x(milliseconds: float) -> float:
    return LEFT + _place(milliseconds) * (WIDTH - 2 * LEFT)
