"""Adapters against our own base and next to other engines: `python -m benchmarks.adapters`.

Owns: that comparison and its table. Never does: install a peer (`benchmarks.peers` does).

Random adapters on all seven matrices of SmolLM2 are written as peft's and llama.cpp's files. One stream (S1) has an adapter
of rank 16; 64 requests at once (S3) have eight adapters of ranks 8 to 64 in turns. Our base is measured in an engine without
`--enable-lora`, and again, without adapters in use, in one that has all eight loaded. Then an adapter is read from its files
up to its first token. Rounds alternate between engines, of which one runs at a time; figures are medians. A peer that cannot
take part is listed with its error. Kernels alone: `python -m benchmarks.adapter_kernels`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.adapter_files import write_gguf, write_peft
from benchmarks.peer.checkpoints import Checkpoints
from benchmarks.peer.contenders import Contender, Launches
from benchmarks.peer.environment import Environments, PeerError
from benchmarks.peer.fleet import Fleet
from benchmarks.peer.process import Launch, Worker
from benchmarks.prompts import PromptMaker

RANKS = (16, 8, 32, 64, 16, 8, 32, 64)
"""Ranks of the adapters; S1 uses the first."""
SIZES = {"s1": (1, 128, 256), "s3": (64, 128, 128)}
"""Requests, and tokens in and out of each."""
LIMIT_S = 600.0
ENABLED = {"enable_lora": True, "max_loras": 8, "max_cpu_loras": 16, "max_lora_rank": 64}
FULL_ARGUMENTS = {"vllm": {"enable_lora": True, "max_loras": 8, "max_lora_rank": 64}, "core": ENABLED}


@dataclass(frozen=True, slots=True)
class Side:
    """A row of the table.

    contender: the engine. adapters: whether requests name adapters. idle: whether they are loaded all the same.
    scenarios: what is measured.
    """

    contender: Contender
    adapters: bool
    idle: bool = False
    scenarios: tuple[str, ...] = ("s1", "s3")

    @property
    def name(self) -> str:
        """Title of the row."""
        if self.adapters:
            return f"{self.contender.name}, adapters"
        return f"{self.contender.name}, 8 idle adapters" if self.idle else f"{self.contender.name}, base"


def sides(peers: list[str]) -> Iterator[Side]:
    """Yield all rows, ours first."""
    for name, form in (("core bf16", "bf16"), ("core Q4_1", "gguf")):
        plain = Contender(name, "core", form)
        able = replace(plain, arguments=ENABLED)
        yield Side(plain, adapters=False)
        yield Side(able, adapters=False, idle=True)
        yield Side(able, adapters=True)
    others = {
        "vllm": Contender("vLLM bf16", "vllm", "bf16", FULL_ARGUMENTS["vllm"]),
        "llama.cpp": Contender("llama.cpp bf16", "llama.cpp", "gguf-bf16"),
        "transformers": Contender("transformers bf16", "transformers", "bf16"),
    }
    for peer in peers:
        # 64 requests take transformers minutes
        scenarios = ("s1",) if peer == "transformers" else ("s1", "s3")
        yield Side(others[peer], adapters=True, scenarios=scenarios)


class Bench:
    """The run: adapters on disk, engines, figures in seconds by row and scenario."""

    def __init__(self, launches: Launches, console: Console) -> None:
        self._launches = launches
        self._console = console
        self._fleet = Fleet(launches, launches.work / "logs")
        tokenizer = Tokenizer.from_file(str(launches.checkpoints.path("bf16") / "tokenizer.json"))
        self._maker = PromptMaker(lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids))
        self.seconds: dict[str, dict[str, list[float]]] = {}
        self.failures: dict[str, str] = {}
        self._files = launches.work / "adapters"
        self._fresh = 0
        for number, rank in enumerate(RANKS):
            self._write(f"adapter{number}", rank, number)

    def round(self, side: Side, counts: bool) -> None:
        """Measure a row once; an error takes it out of the run."""
        if side.name in self.failures:
            return
        try:
            launch = self._launch(side.contender)
            with self._fleet.worker(f"{side.contender.name} {bool(side.contender.arguments)}", launch) as worker:
                if side.idle:
                    requests = self._requests(len(RANKS), 16, 1, adapters=True)
                    worker.ask(requests, LIMIT_S)
                for scenario in side.scenarios:
                    requests = self._requests(*SIZES[scenario], adapters=side.adapters)
                    answer = worker.ask(requests, LIMIT_S)
                    self._count(side, scenario, answer["seconds"], counts)
                if side.adapters:
                    self._load(side, worker, counts)
        except PeerError as error:
            self.failures[side.name] = str(error)
            self._console.print(f"{side.name}: {error}", style="yellow", markup=False, highlight=False)

    def _load(self, side: Side, worker: Worker, counts: bool) -> None:
        """Measure the first token of an adapter that the engine has not seen; not every engine can load one later."""
        try:
            answer = worker.ask(self._fresh_adapter(16), LIMIT_S)
        except PeerError as error:
            self.failures[f"{side.name}, load"] = str(error)
            return
        self._count(side, "load", answer["seconds"], counts)

    def close(self) -> None:
        """End all engines."""
        self._fleet.close()

    def _count(self, side: Side, scenario: str, seconds: float, counts: bool) -> None:
        if counts:
            self.seconds.setdefault(side.name, {}).setdefault(scenario, []).append(seconds)

    def _requests(self, count: int, given: int, wanted: int, *, adapters: bool) -> dict[str, Any]:
        request: dict[str, Any] = {
            "do": "generate",
            "prompts": self._maker.batch(count, given),
            "max_tokens": wanted,
        }
        if adapters:
            request["adapters"] = [f"adapter{number % len(RANKS)}" for number in range(count)]
        return request

    def _fresh_adapter(self, rank: int) -> dict[str, Any]:
        """Return one request of one token with an adapter that no engine has seen."""
        self._fresh += 1
        name = f"fresh{self._fresh}"
        self._write(name, rank, 100 + self._fresh)
        return {
            "do": "generate",
            "prompts": self._maker.batch(1, 16),
            "max_tokens": 1,
            "adapters": [name],
        }

    def _write(self, name: str, rank: int, seed: int) -> None:
        shape = self._launches.checkpoints.shape()
        folder = self._files / name
        if not folder.exists():
            write_peft(folder, shape, rank, seed, str(self._launches.checkpoints.path("bf16")))
            write_gguf(self._files / f"{name}.gguf", shape, rank, seed)

    def _launch(self, contender: Contender) -> Launch:
        if contender.peer == "llama.cpp":
            files = ",".join(str(self._files / f"adapter{number}.gguf") for number in range(len(RANKS)))
            contender = replace(contender, arguments={"lora": files})
        launch = self._launches.worker(contender)
        *command, options = launch.command
        with_files = json.loads(options) | {"adapters": str(self._files)}
        return replace(launch, command=[*command, json.dumps(with_files)])


def table_of(bench: Bench) -> Table:
    """Return the figures: medians, and ratios to our own base in the same form of the weights."""
    table = Table()
    for column in ("", "S1 tokens/s", "of the base", "S3 tokens/s", "of the base", "load to first token, ms"):
        table.add_column(column)
    for name, found in bench.seconds.items():
        own = f"{name.partition(',')[0]}, base"
        cells = [name]
        for scenario in ("s1", "s3"):
            count, _, wanted = SIZES[scenario]
            mine = found.get(scenario)
            base = bench.seconds.get(own, {}).get(scenario)
            cells.append(f"{count * wanted / statistics.median(mine):.0f}" if mine else "-")
            shares = [before / after for before, after in zip(base or [], mine or [], strict=False)]
            cells.append(f"{statistics.median(shares):.3f}" if shares else "-")
        loads = found.get("load")
        cells.append(f"{statistics.median(loads) * 1e3:.0f}" if loads else "-")
        table.add_row(*cells)
    for name, reason in bench.failures.items():
        table.add_row(name, reason)
    return table


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Adapters against our own base and next to other engines.")
    parser.add_argument("--peers", default="vllm,llama.cpp,transformers", help="some of these; empty: none")
    parser.add_argument("--rows", default="", help="only the rows whose titles contain this, for example 'core bf16'")
    parser.add_argument("--repeats", type=int, default=3, help="counted rounds after a warm-up")
    parser.add_argument("--model", help="a GGUF file; the embedded default when left out")
    parser.add_argument(
        "--env-dir",
        type=Path,
        default=Path.home() / ".cache" / "core-peers",
        help="environments and checkpoints of the peers",
    )
    parser.add_argument("--json", type=Path, help="where figures are written")
    return parser.parse_args()


def main() -> None:
    """Measure, and print the table."""
    options, console = parse(), Console()
    environments = Environments(options.env_dir, console, offline=True)
    checkpoints = Checkpoints(options.model, options.env_dir / "models", environments, console)
    bench = Bench(Launches(environments, checkpoints, options.env_dir / "work"), console)
    rows = [side for side in sides([peer for peer in options.peers.split(",") if peer]) if options.rows in side.name]
    try:
        for repetition in range(options.repeats + 1):
            for side in rows:
                bench.round(side, counts=repetition > 0)
    finally:
        bench.close()
    console.print(table_of(bench))
    if options.json is not None:
        figures = {"seconds": bench.seconds, "failures": bench.failures}
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
