"""Line charts of results, as one SVG file written without a library.

Owns: reading results, lines by field, the drawing. Never does: measure. Called by: `core bench plot`.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from core.api.errors import UserError, nearest
from core_commands.cli.own_files import own_path

COLOURS = ("#1f6fb4", "#d4622a", "#2a7f62", "#8a4fa3", "#b03a48", "#6b6b2a", "#3aa0a0", "#555555")
WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 40, 50
LEGEND = 20
"""Height of a line's name below the charts."""
NUM_MARKS = 5
SMALLEST_SPAN = 1e-9
"""Spans below this count as zero: axis labels have ten decimal digits."""
MOST_LINES = 24
SMALL_IS_GOOD = ("_ms", "_s")
"""Ends of the names of fields that are better when they are small."""

Row = dict[str, Any]
Point = tuple[float, float]
Lines = Mapping[str, Sequence[Point]]


def read_rows(paths: Sequence[str]) -> list[Row]:
    """Read results from files with one result, a list, or one per line, and from sweep directories by their summary.
    Raises UserError.
    """
    rows: list[Row] = []
    for name in paths:
        path = own_path(name)
        if os.path.isdir(path):
            path = path / "summary.json"
        try:
            text = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
        rows += _decoded(text, path)
    for row in rows:
        speed, users = _number(row, "output_throughput"), _number(row, "max_concurrency")
        if speed is not None and users:
            row["output_throughput_per_user"] = speed / users
    if not rows:
        raise UserError("There is no result to draw; name files that bench serve or bench sweep has written.")
    return rows


def lines_of(rows: Sequence[Row], x: str, y: str, by: Sequence[str]) -> dict[str, list[Point]]:
    """Return the points of each line, ascending; runs with equal x are reduced to their median. Raises UserError for an
    unknown field.
    """
    for field in (x, y, *by):
        _check_field(rows, field)
    values: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        name = ", ".join(f"{field}={row.get(field, 'unset')}" for field in by)
        at = _number(row, x)
        value = _number(row, y)
        if at is not None and value is not None:
            values.setdefault(name, {}).setdefault(at, []).append(value)
    if not values:
        raise UserError(
            f"No result has numbers for both {x} and {y}; an endless rate is none: try --x max_concurrency."
        )
    if len(values) > MOST_LINES:
        raise UserError(f"--by {','.join(by)} makes {len(values)} lines; at most {MOST_LINES} can be told apart.")
    lines: dict[str, list[Point]] = {}
    for name, points in values.items():
        medians = [(at, statistics.median(found)) for at, found in points.items()]
        lines[name] = sorted(medians)
    return lines


def frontier(points: Sequence[Point], x: str, y: str) -> list[Point]:
    """Return the points that no other one equals or beats in both fields."""
    signs = [-1 if name.endswith(SMALL_IS_GOOD) else 1 for name in (x, y)]
    kept: list[Point] = []
    for at, value in sorted(points, key=lambda point: (-signs[0] * point[0], -signs[1] * point[1])):
        if not kept or signs[1] * value > signs[1] * kept[-1][1]:
            kept.append((at, value))
    return sorted(kept)


def svg(charts: Mapping[str, Lines], x: str) -> str:
    """Draw the charts one below another. charts: lines by the name of the drawn field."""
    names = list(dict.fromkeys(name for lines in charts.values() for name in lines))
    named = [] if names == [""] else names
    below = HEIGHT * len(charts)
    height = below + LEGEND * len(named)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for index, (y, lines) in enumerate(charts.items()):
        parts += _chart(lines, x, y, HEIGHT * index, names)
    for index, name in enumerate(named):
        at = below + LEGEND * index
        parts.append(f'<rect x="{LEFT}" y="{at}" width="12" height="12" fill="{_colour(index)}"/>')
        parts.append(f'<text x="{LEFT + 20}" y="{at + 11}">{escape(name)}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _chart(lines: Lines, x: str, y: str, top: float, names: Sequence[str]) -> list[str]:
    """Draw one chart with its axes. top: its upper edge. names: of all lines, in the order of their colours."""
    points = [point for line in lines.values() for point in line]
    across = marks(0.0, max(at for at, _ in points))
    up = marks(0.0, max(value for _, value in points))
    wide = (WIDTH - LEFT - RIGHT) / across[-1]
    tall = (HEIGHT - TOP - BOTTOM) / up[-1]
    floor = top + HEIGHT - BOTTOM
    parts = [f'<text x="{LEFT}" y="{top + 22}" font-size="14" font-weight="bold">{escape(y)}</text>']
    for mark in across:
        right = LEFT + mark * wide
        parts.append(f'<text x="{right:.1f}" y="{floor + 18}" text-anchor="middle" fill="#555">{mark:g}</text>')
    for mark in up:
        down = floor - mark * tall
        parts.append(f'<line x1="{LEFT}" y1="{down:.1f}" x2="{WIDTH - RIGHT}" y2="{down:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{down + 4:.1f}" text-anchor="end" fill="#555">{mark:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{floor + 38}" text-anchor="middle">{escape(x)}</text>')
    for name, line in lines.items():
        places = [(LEFT + at * wide, floor - value * tall) for at, value in line]
        parts += _line(places, _colour(names.index(name)))
    return parts


def _line(places: Sequence[Point], colour: str) -> list[str]:
    """Draw one line with its points. places: (right, down) in the drawing."""
    path = " ".join(f"{right:.1f},{down:.1f}" for right, down in places)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for right, down in places:
        parts.append(f'<circle cx="{right:.1f}" cy="{down:.1f}" r="3.5" fill="{colour}"/>')
    return parts


def _colour(index: int) -> str:
    """Return the colour of a line; colours repeat for many lines."""
    return COLOURS[index % len(COLOURS)]


def marks(low: float, high: float) -> list[float]:
    """Return about `NUM_MARKS` round numbers from `low` to `high` or slightly beyond."""
    span = high - low
    if span < SMALLEST_SPAN:
        span = 1.0
    step = 10.0 ** math.floor(math.log10(span / NUM_MARKS))
    while span / step > NUM_MARKS:
        power = 10 ** math.floor(math.log10(step))
        leading = round(step / power)
        step *= 2.5 if leading == 2 else 2  # 1, 2, 5, 10, ...
    count = math.ceil(
        span / step - 1e-9
    )  # floating-point division of a whole number of steps may come out slightly too large
    return [round(low + step * number, 10) for number in range(count + 1)]


def _decoded(text: bytes, path: Path) -> list[Row]:
    """Parse one result, a list of results, or one per line."""
    try:
        found: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        decoder = msgspec.json.Decoder()
        try:
            found = decoder.decode_lines(text)
        except msgspec.DecodeError as error:
            raise UserError(f"{path}: no result of a measurement: {error}.") from None
    rows = found if isinstance(found, list) else [found]
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path}: no result of a measurement; expected JSON objects.")
    return rows


def _check_field(rows: Sequence[Row], name: str) -> None:
    """Raise UserError when no result has a field."""
    if not any(name in row for row in rows):
        known = {field for row in rows for field in row}
        raise UserError(f"{name}: no field of a result.{nearest(name, known)}")


def _number(row: Row, name: str) -> float | None:
    """Return the value of a field for a chart; None without one."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None
