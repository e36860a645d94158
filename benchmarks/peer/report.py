"""`docs/performance.md`: the figures, the ratios beside the targets, and how to measure them again.

Owns: the words and the tables. Never does: measure or compute (see `results`, `targets`). Called by: `benchmarks.peers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.peer.results import Block, Results
from benchmarks.peer.scenarios import WHAT
from benchmarks.peer.targets import TARGETS, LimitShare, Target

FIGURES = {
    "s1": ("decode tok/s", "TTFT ms"),
    "s2": ("prompt tok/s",),
    "s3": ("output tok/s", "total tok/s"),
    "s4": ("seconds",),
    "s5": ("output tok/s", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms"),
    "s7": ("with / without", "tok/s with", "tok/s without"),
    "s6": ("start s", "memory MB", "KV MB", "memory less KV MB"),
    "s8": ("sentences/s",),
}
INTRODUCTION = """# Performance

`core` against vLLM, llama.cpp, ik_llama.cpp, transformers and OpenVINO on one machine, with equal weights: {model},
dequantized from one GGUF file, rounded to bfloat16 and converted to each engine's format. Greedy, end of text ignored,
prompts of random sentences that never repeat. In each repetition our engine runs first and then every peer, on the same
prompts, each in its own process while the others are stopped; one repetition warms up, then medians. A ratio is the median
of the ratios of the repetitions. This file is written by `benchmarks/peers.py`; all figures of every repetition are in
[performance.json](performance.json)."""
NOTES = """## How to read it

- **State.** On virtual machines the memory bandwidth may halve for minutes. Reads of 85 and 270 MB and bf16 and int8
  products of 2048 × 2048 matrices are measured before and after each scenario; *good* means that 270 MB were read at the
  threshold of the run (60 GB/s unless `--good-bandwidth` says otherwise) or faster both times. Ratios of engines are
  comparable in any state, because they alternate; shares of the machine's limits are taken of the better measurement.
- **llama.cpp** runs as `llama-server`, asked over loopback for whole completions in S1 to S4 (64 slots), with its prompt
  cache only in S4; its Q4_1 is the GGUF file itself. **ik_llama.cpp** is built from
  its sources for the machine and runs as that one does.
  **vLLM** gets both cores, 2 GiB of cache, and the OpenMP library that
  its manual asks to preload; without that it takes nearly all memory and leaves a core out. **OpenVINO** runs its
  continuous batching pipeline with 2 GiB of cache and prefix caching. **transformers** runs `generate` on one padded batch.
- **Sense.** The mean log probability of 64 tokens of each engine's last output under transformers in float32, and how
  many of its first tokens equal ours. Roundings differ, so greedy outputs part somewhere; nonsense would lie below -2.5.
- **Memory** is the peak of the summed proportional set sizes of all server processes during S5. vLLM fills its cache with
  zeros and llama.cpp says how large its own is; ours is counted as far as tokens were written.
- **S5 with Poisson arrivals**: the share of requests whose first token came within 500 ms of their arrival and whose
  further tokens came every 30 ms or faster on average, times the rate at which requests arrive; `goodput` is the best of
  the rates. The arrival times are the same for every engine.

## Measure it again

```
make test                                       # once: the environment with what the conversions need
python benchmarks/peers.py                      # about 25 minutes, after the peers were installed (once, 20 minutes)
python benchmarks/peers.py --quick              # a few minutes, S1 to S3 in short, with the peers that are installed
python benchmarks/peers.py --scenarios s3,s5    # some scenarios; the others keep their figures
python benchmarks/peers.py --resume             # only what performance.json lacks
python benchmarks/peers.py --report             # write this file again from performance.json
python -m benchmarks.profile                    # Python's share of a decode step, part by part
```
"""


def number(value: float) -> str:
    """Three significant digits, thousands in full."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars in cells are escaped."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def scenario_table(results: Results, scenario: str) -> str:
    """One row a contender; one that failed shows its reason."""
    block, medians = results.blocks[scenario], results.medians(scenario)
    names = FIGURES.get(scenario) or tuple(dict.fromkeys(name for row in medians.values() for name in row))
    outputs = block.get("outputs", {})
    head = ["engine", *names] + (["log probability", "tokens equal to ours"] if outputs else [])
    rows = []
    for contender in block["rows"]:
        figures = medians.get(contender, {})
        row = [contender, *(number(figures[name]) if name in figures else "–" for name in names)]
        if contender in block["failures"]:
            row[1] = f"failed: {block['failures'][contender]}"
        if outputs:
            row += verdict(outputs.get(contender))
        rows.append(row)
    return table(head, rows)


def verdict(found: dict[str, float] | None) -> list[str]:
    """Two cells about an output."""
    if found is None:
        return ["–", "–"]
    mark = "" if found["sense"] else " (nonsense)"
    return [f"{found['mean logprob']:.2f}{mark}", f"{found['equal first tokens']:.0f} of {found['tokens']:.0f}"]


def limits_line(block: Block) -> str:
    """The machine beside a block."""
    pairs = [f"{name} {number(block['before'][name])} → {number(block['after'][name])}" for name in block["before"]]
    short = ", short version" if block["quick"] else ""
    return f"*{block['date']}{short}, state {block['state']}: {', '.join(pairs)} (GB/s; GFLOP/s)*"


def ratio_table(results: Results, targets: Sequence[Target] = TARGETS) -> str:
    """Every target that could be measured, and those that could not."""
    rows = []
    for target in targets:
        ratio = results.ratio((target.scenario, target.ours), (target.scenario, target.theirs), target.figure)
        block = results.blocks.get(target.scenario)
        shown = "not measured" if ratio is None else f"{ratio:.2f}×" if ratio >= 0.1 else f"{ratio:.3f}×"
        mark = "–" if ratio is None else "met" if target.met(ratio) else "**missed**"
        pair = f"{target.ours} / {target.theirs}"
        rows.append(
            [target.scenario.upper(), target.figure, pair, shown, target.goal, mark, block["state"] if block else "–"]
        )
    return table(["", "figure", "ours / theirs", "ratio", "target", "", "state"], rows)


def share_table(shares: Sequence[LimitShare]) -> str:
    """Shares of the machine's limits."""
    rows = [
        [s.what, f"{s.share:.0%}", f"≥ {s.wanted:.0%}", "met" if s.share >= s.wanted else "**missed**"] for s in shares
    ]
    return table(["", "share", "target", ""], rows)


def engines_table(results: Results) -> str:
    """Versions, import and load times, sizes."""
    sizes = results.data.get("environments", {})
    rows = [
        [name, engine["version"], f"{engine['import_seconds']:.1f} s", f"{engine['load_seconds']:.1f} s"]
        for name, engine in results.data["engines"].items()
        if "version" in engine
    ]
    text = table(["engine", "version", "import", "load"], rows)
    if sizes:
        installs = [
            [peer, f"{size['MB']:,.0f} MB", f"{size['install s']:.0f} s" if size["install s"] else "–"]
            for peer, size in sizes.items()
        ]
        text += "\n\n" + table(["environment", "size", "install"], installs)
    return text


def commands(results: Results) -> str:
    """What was run, for each engine: its worker, and its server where it has one."""
    lines = []
    for name, engine in results.data["engines"].items():
        for kind in ("command", "server"):
            if kind in engine:
                lines += [f"# {name}, {'offline' if kind == 'command' else 'served'}", engine[kind], ""]
    return "\n".join(["```", *lines[:-1], "```"])


def render(results: Results, shares: Sequence[LimitShare], plot: str, sizes: str = "") -> str:
    """The whole page. plot: file name of the picture beside it. sizes: the section about real sizes."""
    machine = results.data["machine"]
    parts = [
        INTRODUCTION.format(model=results.data["model"]),
        f"![Ratios of core to its peers, beside the targets]({plot})",
    ]
    if sizes:
        parts.append(sizes)
    parts += ["## Machine", table(["", ""], [[name, value] for name, value in machine.items()])]
    parts += ["## Ratios and targets", ratio_table(results)]
    if shares:
        parts.append(share_table(shares))
    parts.append("## Figures")
    for scenario, what in WHAT.items():
        if scenario in results.blocks:
            parts += [
                f"### {scenario.upper()}: {what}",
                limits_line(results.blocks[scenario]),
                scenario_table(results, scenario),
            ]
    parts += ["## Engines", engines_table(results)]
    parts += ["## Commands", "Folders are shortened to what they hold.", commands(results), NOTES.rstrip()]
    return "\n\n".join(parts) + "\n"
