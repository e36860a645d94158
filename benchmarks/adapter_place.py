"""What all rows about adapters share: engines with adapters, adapters on disk, and requests.

Owns: the launches of engines with adapters, the files, and the bodies of requests. Never does: measure. Called by:
`benchmarks.adapters` and its rows.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.adapter_files import write_gguf, write_peft
from benchmarks.peer.checkpoints import Shape
from benchmarks.peer.contenders import Contender, Launches
from benchmarks.peer.fleet import Fleet
from benchmarks.peer.process import Launch
from benchmarks.prompts import PromptMaker

RANKS = (16, 8, 32, 64, 16, 8, 32, 64)
"""Ranks of the adapters that are there from the start; one stream uses the first."""
ENABLED = {"enable_lora": True, "max_loras": 8, "max_cpu_loras": 16, "max_lora_rank": 64}
FORMS = {"bf16": "bf16", "Q4_1": "gguf"}
"""Weights of our engine, and the form of the checkpoint."""

Record = dict[str, Any]
"""A row's figures: `row`, `engine`, `bar` (in words), `met`, and numbers by name."""


class Place:
    """Engines, adapters on disk and prompts.

    repeats: counted repetitions.
    seconds: after which no further repetition begins.
    limit: seconds that an engine has for an answer.
    """

    def __init__(self, launches: Launches, repeats: int, seconds: float, limit: float) -> None:
        self.launches = launches
        self.repeats = repeats
        self.limit = limit
        self.fleet = Fleet(launches, launches.work / "logs")
        self.files = launches.work / "adapters"
        self.shape = launches.checkpoints.shape()
        tokenizer = Tokenizer.from_file(str(launches.checkpoints.path("bf16") / "tokenizer.json"))
        self.maker = PromptMaker(lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids))
        self._fresh = 0
        self._end = time.monotonic() + seconds
        for number, rank in enumerate(RANKS):
            self.write(f"adapter{number}", rank, number, gguf=True)

    @property
    def is_over(self) -> bool:
        """Whether no further repetition begins."""
        return time.monotonic() > self._end

    def write(self, name: str, rank: int, seed: int, *, shape: Shape | None = None, gguf: bool = False) -> str:
        """Write an adapter unless it is there; returns its name. gguf: for llama.cpp, too."""
        folder = self.files / name
        of = shape or self.shape
        if not folder.exists():
            write_peft(folder, of, rank, seed, str(self.launches.checkpoints.path("bf16")))
        if gguf and not folder.with_suffix(".gguf").exists():
            write_gguf(folder.with_suffix(".gguf"), of, rank, seed)
        return name

    def fresh(self, rank: int) -> str:
        """Return the name of an adapter that no engine of this run has seen."""
        self._fresh += 1
        return self.write(f"fresh-{rank}-{self._fresh}", rank, 100 * rank + self._fresh)

    def core(self, form: str, name: str, **arguments: Any) -> Contender:
        """Return our engine. form: a key of `FORMS`."""
        return Contender(f"core {form} {name}", "core", FORMS[form], arguments)

    def worker(self, contender: Contender) -> Launch:
        """Return the launch of a worker that finds the adapters. Raises PeerError."""
        if contender.peer == "llama.cpp":
            files = ",".join(str(self.files / f"adapter{number}.gguf") for number in range(len(RANKS)))
            contender = replace(contender, arguments={"lora": files})
        launch = self.launches.worker(contender)
        *command, options = launch.command
        with_files = json.loads(options) | {"adapters": str(self.files)}
        return replace(launch, command=[*command, json.dumps(with_files)])

    def log(self, name: str) -> Path:
        """Return the file of a server's log."""
        return self.launches.work / "logs" / f"{name}.log"

    def requests(self, count: int, given: int, wanted: int, names: list[str] | None = None) -> dict[str, Any]:
        """Return requests for a worker. names: adapters, which requests use in turns."""
        body: dict[str, Any] = {
            "do": "generate",
            "prompts": self.maker.batch(count, given),
            "max_tokens": wanted,
        }
        if names:
            body["adapters"] = [names[number % len(names)] for number in range(count)]
        return body


def standard_names() -> list[str]:
    """Return the adapters that are there from the start."""
    return [f"adapter{number}" for number in range(len(RANKS))]
