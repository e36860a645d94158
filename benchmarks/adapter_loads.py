"""Many adapters, large ones, and their memory, in our engine.

Owns: the rows `many`, `large` and `memory`. Never does: compare with another engine. Called by: `benchmarks.adapters`.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.adapter_place import ENABLED, FORMS, Place, Record
from benchmarks.peer.checkpoints import Shape
from benchmarks.peer.process import Worker
from core_config.resolve import resolve

REGISTERED, RESIDENT = 1000, 16
TENSOR_FILES = 16
"""Different files of tensors among the registered adapters, which differ in `lora_alpha`, so that each has an identity."""
MANY = (96, 16, 48)
"""Requests, and tokens in and out of each, of the row `many`. Its first round does not count."""
LARGE = Shape(4096, 14336, 8, 32, 8, 128, 128256)
"""Llama 3 8B with 8 of its 32 layers: with all of them the row had no figure after 100 s. The vocabulary of the base is
SmolLM2's, whose tokenizer it has.
"""
LARGE_S = 2.0 * LARGE.layers / 32
LARGE_ARGUMENTS = {"load_format": "dummy", "quantization": "nf4", "max_model_len": 256, "max_num_seqs": 4}

SMALL = {"kv_cache_memory_bytes": 16 << 20, "max_model_len": 256}
"""A cache that the first requests fill, so that later ones add no memory."""


def many(place: Place) -> Iterator[Record]:
    """Yield the speed over 1,000 registered adapters, 16 of them in memory, next to eight that all are."""
    names = _register(place)
    arguments = {**ENABLED, "max_loras": RESIDENT, "max_cpu_loras": RESIDENT}
    engine = place.core("bf16", "many", **arguments)
    draw = random.Random(0)
    weights = [1 / (place_ + 1) for place_ in range(REGISTERED)]
    with place.fleet.worker(engine.name, place.worker(engine)) as worker:
        count, given, wanted = MANY
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(place.repeats + 1):
            few = [names[number % 8] for number in range(count)]
            worker.ask(_asked(place, names[:8], 4, 1), place.limit)
            seconds[0].append(worker.ask(_asked(place, few, given, wanted), place.limit)["seconds"])
            drawn = draw.choices(names, weights, k=count)
            worker.ask(
                _asked(place, sorted(set(drawn)), 4, 1), place.limit
            )  # registers those that the engine does not know
            seconds[1].append(worker.ask(_asked(place, drawn, given, wanted), place.limit)["seconds"])
    few_s, many_s = (statistics.median(found[1:]) for found in seconds)
    yield {
        "row": "many",
        "engine": "core bf16",
        "registered": REGISTERED,
        "resident": RESIDENT,
        "tokens_per_s": round(count * wanted / many_s, 1),
        "tokens_per_s_of_8_resident": round(count * wanted / few_s, 1),
        "share": round(few_s / many_s, 3),
        "bar": "at least 0.7 of 8 resident",
        "met": few_s / many_s >= 0.7,
    }


def _register(place: Place) -> list[str]:
    """Write adapters that share files of tensors."""
    for number in range(TENSOR_FILES):
        place.write(f"shared{number}", 16, 500 + number)
    names = []
    for number in range(REGISTERED):
        folder = place.files / f"many{number}"
        source = place.files / f"shared{number % TENSOR_FILES}"
        if not folder.exists():
            folder.mkdir()
            (folder / "adapter_model.safetensors").hardlink_to(source / "adapter_model.safetensors")
            config = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
            config["lora_alpha"] = 32 + number / 1024
            (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
        names.append(folder.name)
    return names


def _asked(place: Place, names: list[str], given: int, wanted: int) -> dict[str, Any]:
    return place.requests(len(names), given, wanted, names)


def large(place: Place) -> Iterator[Record]:
    """Yield the time from reading an adapter of rank 64 for an 8B model to its first token."""
    folder = place.launches.work / "large-base"
    if not folder.exists():
        _write_large(place, folder)
    engine = place.core("bf16", "large", **{**ENABLED, **LARGE_ARGUMENTS})
    launch = place.worker(engine)
    *command, options = launch.command
    launch.command[:] = [*command, json.dumps(json.loads(options) | {"model": str(folder)})]
    with place.fleet.worker(engine.name, launch) as worker:
        worker.ask(place.requests(1, 16, 1), place.limit)
        base = statistics.median(worker.ask(place.requests(1, 16, 1), place.limit)["seconds"] for _ in range(3))
        seconds = [_first_token(place, worker, number) for number in range(place.repeats)]
    middle = statistics.median(seconds)
    yield {
        "row": "large",
        "engine": f"core, dummy base of {LARGE.layers} layers in nf4",
        "rank": 64,
        "first_token_s": round(middle, 3),
        "base_first_token_s": round(base, 3),
        "bar": f"at most {LARGE_S:g} s, and 2 s for 32 layers",
        "met": middle <= LARGE_S,
    }


def _first_token(place: Place, worker: Worker, number: int) -> float:
    name = place.write(f"large{number}", 64, 900 + number, shape=LARGE)
    answer = worker.ask(place.requests(1, 16, 1, [name]), place.limit)
    return float(answer["seconds"])


def _write_large(place: Place, folder: Path) -> None:
    small = place.launches.checkpoints.path("bf16")
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(small / file, folder / file)
    config = json.loads((small / "config.json").read_text(encoding="utf-8"))
    config |= {
        "hidden_size": LARGE.hidden,
        "intermediate_size": LARGE.intermediate,
        "num_hidden_layers": LARGE.layers,
        "num_attention_heads": LARGE.heads,
        "num_key_value_heads": LARGE.kv_heads,
        "head_dim": LARGE.head_size,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "shape.json").write_text(json.dumps(asdict(LARGE)), encoding="utf-8")


def memory(place: Place, forms: list[str]) -> Iterator[Record]:
    """Yield the memory that eight adapters of the largest rank take, next to the plan of `core config explain`."""
    for form in forms:
        model = str(place.launches.checkpoints.path(FORMS[form]))
        planned = resolve({"model": model, **ENABLED}, context="explain").memory.adapter
        engine = place.core(form, "memory", **{**ENABLED, **SMALL})
        names = [place.write(f"rank64-{number}", 64, 700 + number) for number in range(9)]
        with place.fleet.worker(engine.name, place.worker(engine)) as worker:
            worker.ask(place.requests(8, 120, 4), place.limit)
            worker.ask(place.requests(1, 16, 4, names[:1]), place.limit)
            before = _written(worker.pid)
            for name in names[1:]:
                worker.ask(place.requests(1, 16, 4, [name]), place.limit)
            taken = (_written(worker.pid) - before) / 8
        yield {
            "row": "memory",
            "engine": f"core {form}",
            "rank": 64,
            "planned_bytes": planned,
            "taken_bytes": round(taken),
            "taken_of_planned": round(taken / planned, 4),
            "bar": "within 1%",
            "met": abs(taken / planned - 1) <= 0.01,
        }


def _written(pid: int) -> int:
    """Return the bytes that a process has written, from the kernel."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
