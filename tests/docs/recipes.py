"""Writes docs/recipes: how to serve models that people use, one page a family, from recipes.toml.

    python -m tests.docs.recipes

Owns: the words of the pages and the figures of memory, which are the engine's own plan for each model's widths. Never does:
load a checkpoint. Called by a person; test_recipes.py compares the pages and plans every command.
"""

from __future__ import annotations

import json
import math
import shlex
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.sizes.models import MODELS
from core.plugin.hookspecs import Device, Probe
from core.plugin.registry import PluginRegistry
from core_commands.cli.options import parse_engine_arguments
from core_config.explained import explained
from core_config.resolve import resolve

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "recipes"
WRITTEN = "Written by `python -m tests.docs.recipes` from `tests/docs/recipes.toml`; edit that."
KEPT = {"bfloat16": (), "8 bits": ("--quantization", "int8"), "4 bits": ("--quantization", "nf4")}
"""{how weights are held: arguments} of the table of memory."""
CACHES = ("auto", "int8_per_token_head", "int4")
"""Types of keys and values, the one of the commands second; a row may have `caches` of its own."""
MACHINE = Device("cpu", "a machine with room for every recipe", 2**42, processors=2)
TOKENS = 32768


@cache
def recipes() -> dict[str, dict[str, Any]]:
    """Return the rows by family."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def config_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration file of a row's model, without anything about its tokens."""
    shape = row["shape"]
    config = dict(MODELS[shape].config if isinstance(shape, str) else shape)
    usual = {"max_position_embeddings": 40960, "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-6}
    return usual | config | dict.fromkeys(row.get("null", ()))


def commands_of(row: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return what each command of a page is for, and its arguments behind the model."""
    found = [("as published", list[str]())]
    if row.get("arguments"):
        found.append((row["why"], row["arguments"]))
    if "experts_int8" not in row.get("arguments", ()) and "published_gb" not in row:
        found.append(("weights rounded to 8 bits while they are read", ["--quantization", "int8"]))
    # The platform takes 1 GiB for keys and values when nobody names a size.
    cache = row.get("caches", CACHES)[:2][-1]
    room = ["--max-model-len", str(TOKENS), "--kv-cache-memory-bytes", str(math.ceil(held(row, cache) * 20) * 10**8)]
    if cache == "auto":
        found.append(("two contexts of 32,768 tokens", room))
    else:
        words = "two contexts of 32,768 tokens, keys and values in 8 bits"
        found.append((words, [*room, "--kv-cache-dtype", cache]))
    formats = [("--tool-call-parser", row.get("calls")), ("--reasoning-parser", row.get("reasoning"))]
    named = [text for name, value in formats if value for text in (name, value)]
    if named:
        found.append(("if the chat template does not show the response format", named))
    return found


def planned(row: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Return what `core config explain` says of a row's model, on a machine with room for it.

    Raises UserError for what the engine refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config_of(row)), encoding="utf-8")
        parsed = parse_engine_arguments([folder, "--load-format", "dummy", *arguments])
        found = resolve(parsed.values, context="explain", registry=registry(), environ={}, problems=parsed.problems)
        return explained(found) | {"warnings": [*parsed.warnings, *found.warnings]}


def complaints(row: Mapping[str, Any], arguments: Sequence[str]) -> list[str]:
    """Return what the engine has to say against a command; a context that follows the memory is none."""
    found = planned(row, arguments)["warnings"]
    return [text for text in found if not text.startswith("max_model_len is lowered")]


@cache
def registry() -> PluginRegistry:
    """Return the installed plugins, which believe that they are on `MACHINE`."""
    found = PluginRegistry()
    for row in found.rows("platform"):
        found.take_answer(row, Probe((MACHINE,)) if row.name == "cpu" else Probe(unavailable="not on this machine"))
    return found


def held(row: Mapping[str, Any], dtype: str) -> float:
    """Return the GB that one request of `TOKENS` tokens takes: of the pages that the plan makes, with its states."""
    arguments = ["--kv-cache-dtype", dtype, "--max-model-len", str(TOKENS), "--kv-cache-memory-bytes", str(2**37)]
    memory = planned(row, arguments)["memory"]
    return memory["kv_bytes"] / memory["max_concurrency"] / 1e9


PAGE = """# {title}

{written}

Settings for `{checkpoint}`, of the family `{name}`. The family is compared with transformers on small random
checkpoints ([models](../models.md)); this checkpoint itself was not run. `core config explain` says the same of yours.

```bash
{commands}
```

A GGUF file is served by its path or as `OWNER/NAME:Q4_K_M` ([GGUF](../gguf.md)).

| weights | GB |
|---|---|
{weights}

Keys and values take 1 GiB of a processor's memory where `--kv-cache-memory-bytes` does not say another size, which
holds {tokens:,} tokens of this model.

| `--kv-cache-dtype` | GB for a context of 32,768 tokens |
|---|---|
{caches}

{notes}
"""


def page(name: str, row: Mapping[str, Any]) -> str:
    """Return the text of a family's page."""
    checkpoint = row["checkpoint"]
    commands = [f"# {why}\ncore serve {checkpoint} {shlex.join(words)}".rstrip() for why, words in commands_of(row)]
    weights = {"as published": row.get("published_gb")}
    if not weights["as published"]:
        held_as = {kept: planned(row, words)["memory"]["weights_bytes"] for kept, words in KEPT.items()}
        weights = {kept: f"{size / 1e9:.1f}" for kept, size in held_as.items()}
    return PAGE.format(
        title=row["title"],
        written=WRITTEN,
        checkpoint=checkpoint,
        name=name,
        commands="\n".join(commands),
        weights="\n".join(f"| {kept} | {size} |" for kept, size in weights.items()),
        tokens=planned(row, [])["memory"]["kv_tokens"],
        caches="\n".join(f"| `{dtype}` | {held(row, dtype):.2f} |" for dtype in row.get("caches", CACHES)),
        notes="\n".join(f"- {note}" for note in row["notes"]),
    )


def index() -> str:
    """Return the page that lists the others."""
    rows = [f"| [{row['title']}]({name}.md) | `{row['checkpoint']}` |" for name, row in recipes().items()]
    return "\n".join(["# Recipes", "", WRITTEN, "", "| models | checkpoint |", "|---|---|", *rows, ""])


def main() -> None:
    """Write every page."""
    PAGES.mkdir(exist_ok=True)
    (PAGES / "README.md").write_text(index(), encoding="utf-8")
    for name, row in recipes().items():
        (PAGES / f"{name}.md").write_text(page(name, row), encoding="utf-8")


if __name__ == "__main__":
    main()
