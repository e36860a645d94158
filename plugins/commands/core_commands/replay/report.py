"""The report of a comparison: one static HTML file, or JSON.

Owns: its text. Never does: write a file. Called by: `core diff`.

All text of models and clients is escaped, and the page has no script and loads nothing.
"""

from __future__ import annotations

from html import escape
from typing import Any, Final

import msgspec

from core_commands.replay.comparison import Comparison, RecordDifference

MOST_ROWS: Final = 300
"""Requests in detail. With values of at most 600 characters the file stays below 2 MiB."""
MOST_BYTES: Final = 1_900_000
MOST_PLACES: Final = 8
"""Tokens and values of one request in detail."""
HEAD: Final = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>core diff</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
body { color: #222; background: #fff }
table { border-collapse: collapse; margin: .5rem 0 }
td, th { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left; vertical-align: top }
pre { white-space: pre-wrap; word-break: break-word; margin: 0; max-height: 16rem; overflow: auto }
section { border-top: 2px solid #888; margin-top: 1.5rem }
h2 { font-size: 1.05rem }
.q { color: #555 }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818 }
  td, th { border-color: #444 }
  .q { color: #aaa }
}
</style></head><body>
"""


def as_html(comparison: Comparison) -> bytes:
    """Return the page, the worst requests first."""
    rate = comparison.num_tokens / comparison.seconds if comparison.seconds else 0.0
    facts = [
        ("left", comparison.left),
        ("right", comparison.right),
        ("requests", comparison.num_requests),
        ("requests that differ", len(comparison.rows)),
        ("in a token", comparison.count("token")),
        ("in a tool call", comparison.count("tool_call")),
        ("in a JSON value", comparison.count("json")),
        ("requests with another adapter", comparison.causes["adapter"]),
        ("requests with other pictures or embeddings", comparison.causes["inputs"]),
        ("answer tokens compared", comparison.num_tokens),
        ("of these a second", f"{rate:.0f}" if rate else "not measured"),
        *comparison.speed.lines(),
    ]
    facts += [
        (f"memory planned on the {side}", f"{size / 2**20:,.0f} MiB") for side, size in comparison.planned.items()
    ]
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts)
    parts = [HEAD, f"<h1>Two engines, {comparison.num_requests} requests</h1><table>{rows}</table>"]
    size = sum(map(len, parts))
    worst = comparison.worst()
    for index, row in enumerate(worst):
        section = _section(row)
        size += len(_bytes(section))
        if index == MOST_ROWS or size > MOST_BYTES:
            parts.append(f"<p>and {len(worst) - index} more; --json has all of them.</p>")
            break
        parts.append(section)
    return _bytes("".join([*parts, "</body></html>\n"]))


def as_json(comparison: Comparison) -> bytes:
    """Return everything as JSON."""
    plain: dict[str, Any] = {
        "left": comparison.left,
        "right": comparison.right,
        "requests": comparison.num_requests,
        "tokens": comparison.num_tokens,
        "seconds": comparison.seconds,
        "differ": {kind: comparison.count(kind) for kind in ("token", "tool_call", "json")},
        "causes": dict(comparison.causes),
        "planned_bytes": comparison.planned,
        "speed": comparison.speed.plain(),
        "rows": comparison.worst(),
    }
    return msgspec.json.encode(plain)


def _section(row: RecordDifference) -> str:
    parts = [f"<section><h2>Request {row.number}: {escape(row.path)}</h2><p class=q>{escape(row.question)}</p>"]
    parts += [f"<p>{escape(text)}</p>" for text in (row.prompt, *row.causes, row.problem) if text]
    if row.values:
        parts.append("<table><tr><th>what</th><th></th><th>left</th><th>right</th></tr>")
        for value in row.values[:MOST_PLACES]:
            what = f"{value.kind.replace('_', ' ')}, {value.place}"
            sides = "".join(f"<td><pre>{escape(text)}</pre></td>" for text in (value.left, value.right))
            parts.append(f"<tr><td>{escape(what)}</td><td>{value.outcome}</td>{sides}</tr>")
        parts.append("</table>")
    if row.tokens:
        parts.append(
            "<table><tr><th>prompt</th><th>choice</th><th>token</th><th>left</th><th>right</th><th>margin</th></tr>"
        )
        for prompt, choice, token in row.tokens[:MOST_PLACES]:
            margin = "" if token.margin is None else f"{token.margin:.4g}"
            cells = [prompt, choice, token.index, _shown(token.known), _shown(token.computed), margin]
            parts.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        parts.append("</table>")
    return "".join([*parts, "</section>"])


def _bytes(text: str) -> bytes:
    """Encode text, which may hold half a character of a model that stopped in its middle."""
    return text.encode("utf-8", "replace")


def _shown(token: int | None) -> str:
    return "end" if token is None else str(token)
