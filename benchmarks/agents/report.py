"""The tables of S9 in `docs/agents.md`, from the lines of the results.

Owns: the figures' definitions, bars and words. Never does: measure. Called by: the command `report`.

Figures are those of the newest run that has them, so a part that is measured again replaces the older one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.agents.models import kv_gigabytes
from benchmarks.peer.report import table
from benchmarks.sizes.results import Line

HEADING = "\n## Measured\n"
NAMES = {"dense": "SmolLM2 135M", "window": "Gemma 3 270M", "gdn": "Qwen3.5 0.8B"}
Figures = dict[str, float]
Case = tuple[str, str, str]
"""Model, engine, scenario."""


def write(lines: list[Line], page: Path) -> None:
    """Replace the section of the page that has the tables; it is the last one."""
    before = page.read_text().split(HEADING)[0].rstrip("\n")
    cases = newest(lines)
    page.write_text(before + "\n" + HEADING + "\n" + "\n\n".join(sections(cases)) + "\n")


def newest(lines: list[Line]) -> dict[Case, list[Line]]:
    """Lines of the newest run of each case."""
    runs: dict[Case, list[Line]] = {}
    for line in sorted(lines, key=lambda line: line["run"]):
        case = (line["model"], line["engine"], line["scenario"])
        if case in runs and runs[case][0]["run"] != line["run"]:
            runs[case] = []
        runs.setdefault(case, []).append(line)
    return runs


TURNS_HEAD = [
    "model", "server", "turns", "cached", "computed again", "TTFT s", "beside prefill ms", "with old tokens ms", "total s",
    "core's total",
]  # fmt: skip
KILLS_HEAD = [
    "model", "killed, and what keeps", "known tokens", "cached", "TTFT s", "beside prefill ms", "pause s", "GB", "s a GB",
]  # fmt: skip


def sections(cases: dict[Case, list[Line]]) -> Iterator[str]:
    """Yield the parts of the section."""
    yield (
        "Written by `python -m benchmarks.agents report` from [agents.jsonl](agents.jsonl). Each turn adds 1,336 random tokens,"
        "\nwhich stand for a tool's output, and an answer of 64. Shapes are those of the models, weights are random. Requests"
        "\nare token ids over HTTP to a server of its own on two cores. 40 turns are the aim; the tables say how many"
        "\nwere run.\n\n"
        "```bash\npython -m benchmarks.agents measure --models gdn --turns 40 --peers llama.cpp --program llama.cpp=PATH\n```"
    )
    yield table(
        TURNS_HEAD,
        [row for case, lines in cases.items() if case[2] == "one" for row in turns_row(case, lines, cases)],
    )
    yield (
        "- **cached**: share of the tokens sent or received before that the server did not compute again, over all turns and"
        "\n  three forks. **computed again**: most of these tokens in one turn."
        "\n- **TTFT s**: of the first turn, the median one and the last. **beside prefill ms**: median and largest TTFT minus"
        "\n  the time in which the server computed the prompt, by its own clock. **with old tokens ms**: the same with the"
        "\n  share of that time that known tokens had, up to one block of which `core` computes again. Both grow with the"
        "\n  prompt, for `core` by 0.4 ms for 1,000 tokens: ids are read, blocks get their keys, and the first event repeats"
        "\n  the ids. After these figures were taken, the engine's part became less, since a history that comes again is not"
        "\n  hashed again: 0.33 instead of 0.68 processor ms for 1,000 known tokens on an AMD Zen 3, of 0.68 and 1.00 in all"
        "\n  processes, without ids in the events (`python -m benchmarks.known_tokens`)."
        "\n- **core's total**: time of core's turns divided by that of as many turns of this server."
    )
    yield table(
        ["model", "server", "agents x turns", "cached", "computed again", "TTFT s, median", "all s"],
        [several_row(case, lines) for case, lines in cases.items() if case[2] == "several" and figures_of(lines)],
    )
    yield (
        "After a `kill -9` of the server, two seconds after an answer, or of the engine. **pause**: start of the next server,"
        "\nor time until a short prompt has its first token on the next engine. **GB**: keys and values of the known tokens."
        "\n**s a GB**: the time beside the prefill, in which they were loaded; with `--keep-kv` what the pause has more than"
        "\nwhere nothing is kept. Below 0.1 GB it is mostly what any turn costs."
    )
    yield table(
        KILLS_HEAD,
        [row for case, lines in cases.items() if case[2] == "kills" for row in kill_rows(case, lines)],
    )
    yield from errors(cases)
    yield states(cases)


def figures_of(lines: list[Line], row: str | None = None) -> list[Figures]:
    """Figures of the turns, of one row or all."""
    return [line["figures"] for line in lines if "figures" in line and row in (None, line["row"])]


def share(turns: list[Figures]) -> str:
    """Cached tokens of all that were known."""
    known = sum(turn["known"] for turn in turns)
    return f"{sum(turn['cached'] for turn in turns) / known:.2%}" if known else ""


def again(turns: list[Figures]) -> str:
    """Most known tokens that one turn computed."""
    return f"{max(max(turn['known'] - turn['cached'], 0) for turn in turns):.0f}"


def beside(turn: Figures) -> float | None:
    """Milliseconds of TTFT in which the prompt was not computed; None where the server tells no times."""
    return 1e3 * (turn["ttft"] - turn["prefill"]) if "prefill" in turn else None


def above(turn: Figures) -> float | None:
    """`beside` with the share of the prefill that known tokens had: TTFT minus the prefill of new tokens."""
    if "prefill" not in turn:
        return None
    computed = turn["prompt"] - turn["cached"]
    new = min(turn["prompt"] - turn["known"], computed)
    return 1e3 * (turn["ttft"] - turn["prefill"] * new / computed)


def spread(values: Iterable[float | None]) -> str:
    """Median and largest."""
    found = [value for value in values if value is not None]
    return f"{statistics.median(found):.0f}, {max(found):.0f}" if found else "not told"


def turns_row(case: Case, lines: list[Line], cases: dict[Case, list[Line]]) -> Iterator[list[str]]:
    """Yield the row of one agent and its forks, where there are figures."""
    turns, forks = figures_of(lines, "one"), figures_of(lines, "fork")
    if not turns:
        return
    both, times = turns + forks, [turn["ttft"] for turn in turns]
    ours = figures_of(cases.get((case[0], "core", "one"), []), "one")
    ratio = ""
    if case[1] != "core" and ours:
        count = min(len(ours), len(turns))
        ratio = f"{sum(turn['s'] for turn in ours[:count]) / sum(turn['s'] for turn in turns[:count]):.2f} x"
    shown = " / ".join(f"{value:.2f}" for value in (times[0], statistics.median(times), times[-1]))
    total = f"{sum(turn['s'] for turn in turns):.1f}"
    yield [
        NAMES[case[0]],
        case[1],
        f"{len(turns)}",
        share(both),
        again(both),
        shown,
        spread(map(beside, both)),
        spread(map(above, both)),
        total,
        ratio,
    ]


def several_row(case: Case, lines: list[Line]) -> list[str]:
    """The row of several agents at once. Their turns begin together; the slowest of each turn counts."""
    turns = figures_of(lines)
    agents = 8
    rounds = [max(turn["s"] for turn in turns[start : start + agents]) for start in range(0, len(turns), agents)]
    median = statistics.median(turn["ttft"] for turn in turns)
    count = f"{agents} x {len(rounds)}"
    return [NAMES[case[0]], case[1], count, share(turns), again(turns), f"{median:.2f}", f"{sum(rounds):.1f}"]


def kill_rows(case: Case, lines: list[Line]) -> Iterator[list[str]]:
    """Yield a row for each way to die."""
    pauses = {line["row"]: line["figures"]["pause"] for line in lines if "pause" in line.get("figures", {})}
    for line in lines:
        if "figures" in line:
            turn = line["figures"]
            gigabytes = kv_gigabytes(case[0], turn["known"])
            extra = (beside(turn) or 0.0) / 1e3
            if "pause" in turn:
                extra = turn["pause"] - pauses.get("engine, nothing kept", turn["pause"])
            pause = turn.get("start", turn.get("pause", 0.0))
            what = line["row"] if line["row"].startswith("engine") else f"server, {line['row']}"
            late = f"{beside(turn) or 0:.0f}"
            yield [
                NAMES[case[0]],
                what,
                f"{turn['known']:.0f}",
                share([turn]),
                f"{turn['ttft']:.2f}",
                late,
                f"{pause:.2f}",
                f"{gigabytes:.2f}",
                "" if line["row"] == "engine, nothing kept" else f"{extra / gigabytes:.2f}",
            ]


def errors(cases: dict[Case, list[Line]]) -> Iterator[str]:
    """Yield the list of servers that could not be run, with their words."""
    found = [
        f"- {NAMES[m]}, {e}, {s}: {line['error']}"
        for (m, e, s), lines in cases.items()
        for line in lines
        if "error" in line
    ]
    if found:
        yield "Not measured:\n\n" + "\n".join(dict.fromkeys(found))


def states(cases: dict[Case, list[Line]]) -> str:
    """Describe the machine's state and the notes of the runs."""
    lines: list[dict[str, Any]] = [line for group in cases.values() for line in group]
    reads = [line["read GB/s"] for line in lines]
    waits = [line["waiting"] for line in lines if line.get("waiting") is not None]
    commits = ", ".join(dict.fromkeys(line["commit"] for line in lines))
    text = f"Commits {commits}. Memory was read at {min(reads)} to {max(reads)} GB/s before the scenarios."
    if waits:
        text += f" Some process waited for a processor in {min(waits):.0%} to {max(waits):.0%} of the time of a turn."
    return " ".join([text, *dict.fromkeys(line["note"] for line in lines if "note" in line)])
