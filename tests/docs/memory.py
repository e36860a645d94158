"""Writes docs/memory.md, saving memory and tuning: `python -m tests.docs.memory`, from memory.toml.

Owns: the words of the page; its figures are the engine's own plan. Never does: measure, or load a checkpoint. Called by a
person; test_memory_page.py compares the page.
"""

from __future__ import annotations

import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from tests.docs.recipes import planned

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "memory.md"
WIDE = 2**38
"""Bytes of KV cache with which any context of the tables fits."""

TEXT = """# Saving memory, and tuning

Written by `python -m tests.docs.memory` from `tests/docs/memory.toml`; edit that.

`core config explain MODEL ARGUMENTS` plans the memory of a server before a weight is loaded, and `serve` refuses a plan that
does not fit, with the numbers that would. Ask it first:

```bash
core config explain MODEL --max-model-len 8192 --max-num-seqs 16 --kv-cache-memory-bytes 4GiB
```

A server's memory is its weights, its keys and values, the buffers of a step, what adapters and pictures take, and about
300 MB for the processes themselves.

## What each argument saves

The figures are GB of the plan for models of these widths, on a processor, in bfloat16 where nothing else is said.

{save}

Keys and values take 1 GiB of a processor's memory unless `--kv-cache-memory-bytes` says otherwise; on a GPU they take what
`--gpu-memory-utilization` leaves. Less of it does not change answers: requests wait, or are preempted and go on with the
same tokens.
`--max-model-len` does not take memory by itself: it bounds what one request may take, and `auto` is the most that fits.

## What to change for which aim

| you want | do | more |
|---|---|---|
{tune}

## What costs memory and is easily forgotten

| argument | costs |
|---|---|
| `--api-server-count N` | about 110 MB for each further process |
| `--standby-engine` | about 180 MB for the second process |
| `--tensor-parallel-size N` | the buffers of a step once more for each rank, and a process each |
| `--kv-offloading-size N` | N GiB of host memory, beside the KV cache |
| `--keep-weights copy` | the prepared weights once more while an engine is replaced; `map` shares them |
| `--state-canary DIR` | nothing in memory; it reads the weights once more at the start |
"""


@cache
def table() -> dict[str, Any]:
    """Return the rows."""
    return tomllib.loads((HERE / "memory.toml").read_text(encoding="utf-8"))


def gigabytes(group: dict[str, Any], arguments: list[str]) -> float:
    """Return the GB of the plan that a group is about."""
    row = {"shape": group["shape"]}
    if "tokens" in group:
        sized = ["--max-model-len", str(group["tokens"]), "--kv-cache-memory-bytes", str(WIDE)]
        memory = planned(row, [*arguments, *sized])["memory"]
        return memory["kv_bytes"] / memory["max_concurrency"] / 1e9
    memory = planned(row, arguments)["memory"]
    part = {"Weights": "weights_bytes", "Buffers of a step": "workspace_bytes", "An adapter in memory": "adapter_bytes"}
    return memory[part[group["part"]]] / 1e9


def saved(group: dict[str, Any]) -> str:
    """Return the table of a group."""
    lines = [f"| {group['part']} | GB | what it costs |", "|---|---|---|"]
    for row in group["rows"]:
        name = f"`{shlex.join(row['arguments'])}`" if row["arguments"] else "the default"
        lines.append(f"| {name} | {gigabytes(group, row['arguments']):.2f} | {row['costs']} |")
    return "\n".join(lines)


def page() -> str:
    """Return the text of the page."""
    tune = [f"| {row['want']} | {row['do']} | [{row['page']}]({row['page']}) |" for row in table()["tune"]]
    return TEXT.format(save="\n\n".join(saved(group) for group in table()["save"]), tune="\n".join(tune))


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
