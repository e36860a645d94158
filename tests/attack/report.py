"""Writes what an attack found: Markdown for diffs and terminals, one HTML page for people.

Owns: both forms. Never does: judge (the phases did).
"""

import platform
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path

from tests.attack.picture import histogram
from tests.attack.results import Check, Phase

STYLE = """
:root { color-scheme: light dark; --ink: #1c2329; --soft: #5c6770; --line: #d9dee2; --paper: #fff; --good: #2a7f62;
  --bad: #b3402a; --tint: #f4f6f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8eb; --soft: #9aa5ad; --line: #3a434a; --paper: #16191c;
  --good: #5cc49d; --bad: #ef8a72; --tint: #1f2428; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 980px;
  margin: 2.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
.verdict { font-size: 1.05rem; margin: .3rem 0 1.4rem; } .soft { color: var(--soft); }
.good { color: var(--good); } .bad { color: var(--bad); } b.good, b.bad { white-space: nowrap; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 2px solid var(--line); }
.checks { table-layout: fixed; } .checks th:nth-child(1) { width: 3.6rem; } .checks th:nth-child(3) { width: 29%; }
.checks th:nth-child(4) { width: 20%; } .checks td { overflow-wrap: anywhere; } th.number { text-align: right; }
th, td { padding: .3rem .7rem .3rem 0; vertical-align: top; } td { border-bottom: 1px solid var(--line); }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.note { color: var(--soft); font-size: .86rem;
  overflow-wrap: anywhere; } details { margin: .6rem 0; } summary { cursor: pointer; color: var(--soft); }
svg { display: block; max-width: 100%; height: auto; background: var(--tint); border-radius: 4px; margin: .5rem 0; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; } svg .title { fill: var(--ink); }
.bar { fill: var(--good); } .over { fill: var(--bad); } .grid { stroke: var(--line); }
.limit { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 3; } a { color: inherit; }
"""


SUMMARY = (
    '<tr><th>phase</th><th class="number">checks</th><th class="number">failed</th><th class="number">time</th></tr>'
)


def write(path: Path, phases: Sequence[Phase], *, seed: int, seconds: float) -> None:
    """Write `path` and the page beside it, whose name ends in .html."""
    facts = f"{datetime.now():%Y-%m-%d %H:%M}, seed {seed}, {seconds / 60:.1f} minutes, {platform.platform(terse=True)}"
    path.write_text(markdown(phases, facts))
    path.with_suffix(".html").write_text(page(phases, facts))


def verdict(phases: Sequence[Phase]) -> str:
    """The outcome in one sentence."""
    total = sum(len(phase.checks) for phase in phases)
    failed = sum(len(phase.failed) for phase in phases)
    return f"All {total} checks held." if not failed else f"{failed} of {total} checks failed."


def markdown(phases: Sequence[Phase], facts: str) -> str:
    """The whole report as Markdown."""
    lines = ["# Attack report", "", f"{verdict(phases)} {facts}.", "", "| phase | held | failed | seconds |"]
    lines += ["|---|---:|---:|---:|"]
    lines += [
        f"| {phase.title} | {len(phase.checks) - len(phase.failed)} | {len(phase.failed)} | {phase.seconds:.0f} |"
        for phase in phases
    ]
    for phase in phases:
        lines += ["", f"## {phase.title}", "", "| | what | found | wanted | |", "|---|---|---|---|---|"]
        shown = [*phase.failed, *(check for check in phase.checks if check.ok)]
        lines += [_row(check) for check in shown]
        lines += [""] if phase.notes else []
        lines += [f"- {note}" for note in phase.notes]
    return "\n".join(lines) + "\n"


def page(phases: Sequence[Phase], facts: str) -> str:
    """The whole report as one HTML page without outside files."""
    bad = any(phase.failed for phase in phases)
    rows = "".join(
        f'<tr><td><a href="#{phase.name}">{escape(phase.title)}</a></td><td class="number">{len(phase.checks)}</td>'
        f'<td class="number {"bad" if phase.failed else "good"}">{len(phase.failed)}</td>'
        f'<td class="number">{phase.seconds:.0f} s</td></tr>'
        for phase in phases
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Attack report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>Attack report</h1>"
        f'<p class="verdict {"bad" if bad else "good"}">{escape(verdict(phases))} '
        f'<span class="soft">{escape(facts)}.</span></p>'
        f'<div class="wide"><table>{SUMMARY}{rows}</table></div>'
        + "".join(_section(phase) for phase in phases)
        + "</body></html>\n"
    )


def _section(phase: Phase) -> str:
    parts = [f'<h2 id="{phase.name}">{escape(phase.title)}</h2>']
    if phase.failed:
        parts.append(_table(phase.failed))
    held = [check for check in phase.checks if check.ok]
    if held:
        few = len(held) <= 30 and not phase.failed
        table = _table(held)
        parts.append(table if few else f"<details><summary>{len(held)} checks held</summary>{table}</details>")
    limits = phase.limits
    parts += [histogram(title, series, limits.get(title)) for title, series in phase.series.items()]
    if phase.notes:
        parts.append("<ul>" + "".join(f'<li class="note">{escape(note)}</li>' for note in phase.notes) + "</ul>")
    return "".join(parts)


def _table(checks: Sequence[Check]) -> str:
    head = "<tr><th></th><th>what</th><th>found</th><th>wanted</th></tr>"
    return f'<div class="wide"><table class="checks">{head}{"".join(_line(check) for check in checks)}</table></div>'


def _line(check: Check) -> str:
    mark = '<b class="good">held</b>' if check.ok else '<b class="bad">failed</b>'
    group = f'<span class="soft">{escape(check.group)}: </span>' if check.group else ""
    note = f'<div class="note">{escape(check.note)}</div>' if check.note else ""
    return (
        f"<tr><td>{mark}</td><td>{group}{escape(check.name)}{note}</td>"
        f"<td>{escape(check.value)}</td><td>{escape(check.target)}</td></tr>"
    )


def _row(check: Check) -> str:
    cells = [check.name, check.value, check.target, check.note]
    mark = "held" if check.ok else "**failed**"
    return f"| {mark} | " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
