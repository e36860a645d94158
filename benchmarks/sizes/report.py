"""`docs/sizes.md` and its picture: figures of real sizes, ratios, and where ours is slower.

Owns: the words and the tables. Never does: measure. Called by: the command `report`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.peer.plot import Bar, svg
from benchmarks.peer.report import number, table
from benchmarks.sizes.models import MODELS
from benchmarks.sizes.results import Case, Results
from benchmarks.sizes.rows import Row, parse
from benchmarks.sizes.targets import reached

ABOUT_ENGINES = {"start s": "start s", "peak MB": "peak MB"}
LESS_IS_BETTER = frozenset(ABOUT_ENGINES)
INTRODUCTION = """# Models of real sizes

`core` beside other engines on models with the widths that people use and random weights, on two cores. Prompts are random
tokens that are new to every cache. Layers are the first ones of the model where not all of them are named; time per token of
all layers is then about proportional, apart from the embedding and the head. This file is written by
`python -m benchmarks.sizes report` from [sizes.jsonl](sizes.jsonl), which has every run."""
PICTURE = "![How many times faster core is](sizes.svg)"
PEERS = ("llama.cpp", "ik_llama.cpp", "vllm", "openvino", "mistral.rs")
WITHOUT_RUNNER = "onnxruntime-genai (int4) is not run by this benchmark yet."
LOADING = """## Loading

`python -m benchmarks.sizes.loading FILE --converted DIRECTORY`, Llama 8B Q4_K_M with all layers, on 2026-11-29: two rounds.
The files lay in memory. Most other programs were stopped, in the first round fewer than in the second. *Loading* is the
engine's phase "load weights"; *new memory* is writing once to as many bytes as the file has, in huge pages with two
threads.

|  | file | reading it | new memory | loading | process start to first token | peak memory |
|---|---|---|---|---|---|---|
| GGUF | 4.92 GB | 0.99, 0.60 s | 11.6, 15.3 s | 10.9, 7.6 s | 12.9, 9.5 s | 5.8 GB, 1.19 × the file |
| after `core convert` | 5.01 GB | 0.88, 0.40 s | – | 0.84, 0.33 s | 3.8, 1.9 s | 5.5 GB, 1.09 × the file |

- **Time.** The aim, 1.5 times the time of reading, is met by the converted form (0.95 and 0.83 times), whose weights are
  the pages of the file, and missed by GGUF. GGUF is packed into new memory, and on this machine that alone takes as long as
  loading: its host takes freed memory back and provides it again at 0.25 GB/s a thread. Packing itself took about 2 s of
  processor time.
- **Memory.** The aim, 1.15 times the file, is met by the converted form and missed by GGUF: 1.02 times for the packed
  weights, 0.1 for the process and its cache, and, while the largest matrix is packed, its pages of the file. Without pages
  of files, which the system can take back, it was 1.12 times.
- **Start.** `core serve` of the embedded model answers with its first token after 1.73 s (median of seven starts on a
  machine where most other programs were stopped), with compiled modules, as an installation has them;
  PYTHONDONTWRITEBYTECODE has every start compile them and costs 1.5 to 2 s more. The aim of 1.2 s is missed: imports in the
  engine take 0.85 (torch alone 0.8), the model and its cache 0.35, and the rest is two starts of Python and the plan. The
  first token no longer waits for a huge page in each layer's KV cache: with `LLM` it took 0.37 s before and 0.009 s after
  (medians of seven interleaved pairs)."""
NOTES = """## How to read it

- A ratio is ours divided by theirs in the same run, as the median over runs; each run has the engines one after the other.
  A figure is the median over all runs, so figures of engines that took part in different runs do not divide to the ratio.
- **GB/s**: what two threads read of memory, the mean of just before and just after a row. It differs by a factor of two
  from minute to minute on virtual machines, and decoding follows it. A share of more than 100% in the aims says that memory
  was faster during the row.
- Each engine runs a row once with prompts of at most 1,024 tokens before it is timed, as the first step of a shape writes to
  memory that the system has yet to provide.
- **Waiting**: share of the time in which some process of the machine waited for a processor, after the kernel's count. On a
  machine without other work it is a few percent; far more says that something else ran too, and the figures are too low.
- **core** is asked through `LLM` in one process. Decoding is the time of further tokens behind a prompt that lies in the
  cache. **llama.cpp** and **ik_llama.cpp** run as their own `llama-batched-bench`, built for this processor, the first with
  `-fa on`, the second with `-rtr` (which repacks while it loads), and `-mla 3` for latent attention. **vLLM** reads the same
  widths in bfloat16, **OpenVINO** GenAI what `optimum-cli export openvino --weight-format int4` makes of them.
- **start s**: from the start of a process to its first token with the file in memory, ours the second start in a row; of
  llama.cpp what it prints as load time. **peak MB**: the largest resident size during the first row, with the pages of a
  mapped file that were read.
- Outputs are not compared here, as weights are random; each family's logits are compared with transformers in
  `tests/families/`, and each format's weights in `tests/checkpoints/`.

## Measure it again

```
python -m benchmarks.sizes measure --models llama-8b --layers 6 --rows 128x1,1kx1 --repeats 3
python -m benchmarks.sizes report
```
"""


HEADING = "## Models of real sizes"
NEXT = "\n## "
MACHINE = "## Machine\n"


def write(results: Results, page: Path) -> None:
    """Write the page and the picture beside it, and the section of `performance.md` in the same folder, if that is there."""
    found = list(_bars(results))
    parts = [INTRODUCTION, *([PICTURE] if found else []), "## Aims", aims(results), "## Ratios", all_ratios(results)]
    parts += ["## Where core is slower", slower(results), "## Figures"]
    for case in results.cases():
        parts += [f"### {title(case)}", state(results, case), *figures(results, case)]
    parts += [LOADING, "## Not measured", missing(results), NOTES.rstrip()]
    page.write_text("\n\n".join(parts) + "\n")
    if found:
        page.with_suffix(".svg").write_text(svg(found))
    performance = page.with_name("performance.md")
    if performance.exists():
        performance.write_text(replaced(performance.read_text(), section(results)))


def replaced(text: str, part: str) -> str:
    """The page with its section about real sizes exchanged, or put before everything about smaller models."""
    before, found, rest = text.partition(HEADING)
    if found:
        return f"{before}{part}\n\n{rest[rest.index(NEXT) + 1 :]}"
    before, found, rest = text.partition(MACHINE)
    return f"{before}{part}\n\n{found}{rest}" if found else text


def section(results: Results) -> str:
    """The part of `performance.md` about real sizes: ratios, and figures of models that no peer ran beside."""
    words = (
        "Models with the widths that people use and random weights; [sizes.md](sizes.md) says how they were measured."
    )
    parts = [HEADING, words]
    if any(_bars(results)):
        parts += [PICTURE, aims(results)]
    for case in results.cases():
        if text := ratios(results, case):
            parts.append(text)
        else:
            parts += [f"{title(case)}, core alone:", *figures(results, case)]
    return "\n\n".join([*parts, missing(results)])


def all_ratios(results: Results) -> str:
    """A table a case; a sentence where there is nothing to divide."""
    tables = filter(None, (ratios(results, case) for case in results.cases()))
    return "\n\n".join(tables) or "No peer was measured in the same run yet."


def aims(results: Results) -> str:
    """A table of what was wanted and what was measured."""
    rows = []
    for aim, case, found in reached(results):
        what = next(
            words for words, row, figure in comparisons(results, case) if (row, figure) == (aim.row, aim.figure)
        )
        if aim.peer is None:
            cells = ["bandwidth for the bytes of a token", f"{found:.0%}", f"≥ {aim.bound:.0%}"]
        else:
            cells = [aim.peer, f"{found:.2f}×", f"≥ {aim.bound:g}×"]
        rows.append([title(case), what, *cells, "met" if found >= aim.bound else "**missed**"])
    return table(["", "", "of", "measured", "aim", ""], rows) if rows else "None was measured yet."


def missing(results: Results) -> str:
    """What this benchmark is for and has no figure of, by name."""
    models = [name for name in MODELS if name not in {case.model for case in results.cases()}]
    seen = {line["engine"] for line in results.lines if "figures" in line}
    lines = [f"- Models: {', '.join(models)}."] if models else []
    others = [peer for peer in PEERS if peer not in seen]
    lines += [f"- Engines: {', '.join(others)}."] if others else []
    return "\n".join(["Without figures yet:", "", *lines, f"- {WITHOUT_RUNNER}"])


def title(case: Case) -> str:
    """`llama-8b Q4_K_M, 6 of 32 layers`."""
    every = MODELS[case.model].layers
    layers = "all layers" if case.layers == every else f"{case.layers} of {every} layers"
    return f"{case.model} {case.form}, {layers}"


def scenario(row: Row) -> str:
    """Number of the scenario that a row's decoding belongs to, or nothing."""
    return {1: "S11", 4: "S12", 16: "S13"}.get(row.streams, "")


def named(results: Results, case: Case) -> list[Row]:
    """Measured rows."""
    return parse(",".join(name for name in results.rows(case) if name != "all"), 0)


def peers(results: Results, case: Case) -> list[str]:
    """Engines beside ours."""
    return [engine for engine in results.engines(case) if engine != "core"]


def comparisons(results: Results, case: Case) -> Iterator[tuple[str, str | None, str]]:
    """(what, row, figure) of everything that may be divided."""
    for row in named(results, case):
        if row.streams == 1:
            yield f"S10 prefill of {row.prompt:,}", row.name, "prefill tok/s"
        streams = "one stream" if row.streams == 1 else f"{row.streams} streams"
        yield f"{scenario(row)} decode behind {row.prompt:,}, {streams}".strip(), row.name, "decode tok/s"
    yield "S14 start", None, "start s"
    yield "S15 peak memory", None, "peak MB"


def ratios(results: Results, case: Case) -> str:
    """A table of ours over theirs; empty without peers."""
    others = peers(results, case)
    rows = []
    for what, row, figure in comparisons(results, case):
        found = [results.ratio(case, row, peer, figure) for peer in others]
        if any(found):
            less = " (less is better)" if figure in LESS_IS_BETTER else ""
            rows.append([what + less, *("–" if one is None else f"{one:.2f}×" for one in found)])
    return table([title(case), *others], rows) if rows else ""


def slower(results: Results) -> str:
    """A list of every figure in which a peer is better."""
    found = []
    for case in results.cases():
        for what, row, figure in comparisons(results, case):
            for peer in peers(results, case):
                ratio = results.ratio(case, row, peer, figure)
                if ratio is not None and (ratio > 1) == (figure in LESS_IS_BETTER) and ratio != 1:
                    found.append(f"- {title(case)}: {what}, {ratio:.2f}× of {peer}")
    if any(ratios(results, case) for case in results.cases()):
        return "\n".join(found) or "Nowhere in what was measured."
    return "Not known: no peer was measured in the same run yet."


def state(results: Results, case: Case) -> str:
    """When it was measured, and what memory gave."""
    lines = results.of(case)
    rates = [line["read GB/s"] for line in lines]
    runs = len({line["run"] for line in lines})
    text = f"{lines[0]['date'][:10]}, runs: {runs}, {min(rates):.0f} to {max(rates):.0f} GB/s read beside each"
    waiting = [line["waiting"] for line in lines if line.get("waiting") is not None]
    if waiting:
        text += (
            f", some process waited for a processor in {min(waiting):.0%} to {max(waiting):.0%} of the time of a row"
        )
    notes = dict.fromkeys(line["note"] for line in lines if "note" in line)
    return "\n\n".join([f"*{text}*", *notes])


def figures(results: Results, case: Case) -> Iterator[str]:
    """Tables of medians, and the errors of who could not."""
    engines = results.engines(case)
    rows = []
    for what, row, figure in comparisons(results, case):
        found = [results.median(case, row, engine, figure) for engine in engines]
        if any(found):
            rows.append([f"{what}, {figure}", *("–" if one is None else number(one) for one in found)])
    yield table(["", *engines], rows)
    errors = results.errors(case)
    if errors:
        yield "\n".join(f"- {who}: {why}" for who, why in errors.items())


def _bars(results: Results) -> Iterator[Bar]:
    """Beside every peer: one stream with the shortest prompt, most streams, the longest prompt; the tick is at equal speed."""
    for case in results.cases():
        rows = named(results, case)
        single = sorted((row for row in rows if row.streams == 1), key=lambda row: row.prompt)
        several = sorted((row for row in rows if row.streams > 1), key=lambda row: row.streams)
        shown = [("decode, one stream", row, "decode tok/s") for row in single[:1]]
        shown += [(f"decode, {row.streams} streams", row, "decode tok/s") for row in several[-1:]]
        shown += [(f"prefill of {row.prompt:,}", row, "prefill tok/s") for row in single[-1:]]
        for what, row, figure in shown:
            for peer in peers(results, case):
                if ratio := results.ratio(case, row.name, peer, figure):
                    yield Bar(f"{case.model} {what} / {peer}", ratio, 1.0)
