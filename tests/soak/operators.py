"""Who operates the server of a soak: pauses, sleep, new weights, resets, while others ask.

Owns: the calls, and taking back what they did. Never does: injure, or compare answers. Called by: the run, a thread each.

All weights have the same bytes, so every answer stays the right one. No call ends requests: each has them wait or end first.
What one operator holds another may not wait for: such a call is refused, which is a right answer.
"""

import json
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import psutil
from safetensors.torch import load_file

from core import SharedTensors
from core_config.locating.default_model import default_model
from tests.attack.row import Answer, Row
from tests.attack.send import send
from tests.soak.cases import ADAPTERS, CHANGES
from tests.soak.site import Site
from tests.soak.tally import Tally

CALL_LIMIT_S = 120.0
"""A call with mode `wait` takes as long as the longest answer."""
IMPATIENT_S = 0.3
INSIST_S = 240.0
AGAIN_S = 0.3
REFUSALS = (400, 409)
NOT_NOW = 503
COPIES = 2
DRAINS = 4
"""How much more often an engine of a group is drained than other things are done."""


class Operators:
    """All of them, until told to stop."""

    def __init__(self, site: Site, tally: Tally) -> None:
        self.site = site
        self.tally = tally
        self.over = threading.Event()
        self._weights = _copies(site.home / "weights")
        self._trains = threading.Lock()
        self._acts: list[tuple[str, Callable[[random.Random], None]]] = [
            ("pause", self._pause),
            ("reset", self._reset),
            ("pause and hang up", self._hang_up),
        ]
        if site.has("weight_transfer_config"):
            self._acts += [("update", self._update), ("gathered update", self._gather)]
        if site.has("enable_lora"):
            self._acts += [
                ("replace an adapter", self._replace_adapter),
                ("load and unload an adapter", self._load_adapter),
                ("send an adapter", self._send_adapter),
            ]
        if site.has("enable_sleep_mode"):
            self._acts.append(("sleep", self._sleep))
        if site.has("kv_transfer_config"):
            self._acts += [("drain an engine", self._drain)] * DRAINS
            self._acts.append(("SIGTERM to an engine", self._end_engine))

    def operate(self, dice: random.Random) -> None:
        """One thing after the other, each taken back before the next one begins."""
        waiting = dice.sample(self._acts, len(self._acts))
        while not self.over.wait(dice.uniform(0.5, 3.0)):
            name, act = waiting.pop() if waiting else dice.choice(self._acts)
            act(dice)
            self.tally.operate(name)

    def halted(self) -> str:
        """Why the server computes nothing although every operator has taken back what it did; empty when it computes."""
        sentences = []
        for path in ("/is_paused", "/is_sleeping")[: 1 + self.site.has("enable_sleep_mode")]:
            answer = self._insist("GET", path)
            if answer is not None and b"true" in answer.body:
                sentences.append(f"{path} says {answer.body.decode()}")
        return "; ".join(sentences)

    def _pause(self, dice: random.Random) -> None:
        self._call("/pause", mode=dice.choice(("keep", "wait")), clear_cache=dice.choice(("true", "false")))
        self.over.wait(dice.uniform(0.0, 1.0))
        self._insist("POST", "/resume")

    def _drain(self, dice: random.Random) -> None:
        """Requests leave an engine, which then gets its share again."""
        engine = dice.randrange(self.site.number("data_parallel_size"))
        self._call("/drain_engine", engine=engine)
        self.over.wait(dice.uniform(0.0, 1.0))
        self._insist("POST", f"/undrain_engine?engine={engine}")
        if dice.random() < 0.5:
            self._call("/rebalance_engines")

    def _end_engine(self, dice: random.Random) -> None:
        """An engine's requests leave it, and the next engine takes its place."""
        engines = [child for child, words in self.site.server.children() if "core.engine.process" in words]
        with suppress(IndexError, psutil.NoSuchProcess):  # a server that has just been killed has none
            dice.choice(engines).terminate()

    def _sleep(self, dice: random.Random) -> None:
        self._call("/sleep", level=dice.choice((1, 2)), mode=dice.choice(("keep", "wait")))
        self.over.wait(dice.uniform(0.0, 1.0))
        if dice.random() < 0.5:
            self._insist("POST", "/wake_up?tags=weights")
        self._insist("POST", "/wake_up")

    def _update(self, dice: random.Random) -> None:
        with self._trains:
            self._post("/update_weights", self._weights_of(dice, frees_first=dice.random() < 0.3))

    def _gather(self, dice: random.Random) -> None:
        with self._trains:
            self._insist("POST", "/start_weight_update")
            for _ in range(2):
                self._post("/update_weights", self._weights_of(dice) | {"mode": "keep"})
            self._post("/finish_weight_update", {"mode": dice.choice(("keep", "wait"))})
            self._abandon()

    def _abandon(self) -> None:
        """Whatever became of a gathered update: the next one is a single one again."""
        self._post("/finish_weight_update", {"mode": "keep"})

    def _reset(self, dice: random.Random) -> None:
        self._call("/reset_prefix_cache", reset_running_requests=dice.choice(("true", "false")))

    def _hang_up(self, dice: random.Random) -> None:
        """The caller goes away while it waits: nothing is paused then."""
        self._call("/pause", IMPATIENT_S, mode="wait", clear_cache="false")
        self._insist("POST", "/resume")

    def _replace_adapter(self, dice: random.Random) -> None:
        """Other weights under the same name: requests that run keep theirs."""
        body = {"lora_name": CHANGES, "lora_path": dice.choice(ADAPTERS), "load_inplace": True}
        self._post("/v1/load_lora_adapter", body)

    def _load_adapter(self, dice: random.Random) -> None:
        """A third name of an adapter, which goes again."""
        name = f"spare-{dice.randrange(3)}"
        self._post(
            "/v1/load_lora_adapter", {"lora_name": name, "lora_path": dice.choice(ADAPTERS), "load_inplace": True}
        )
        self._post("/v1/unload_lora_adapter", {"lora_name": name}, gone=404)

    def _send_adapter(self, dice: random.Random) -> None:
        """One of the two from shared memory, under the name that changes; the memory goes when the call is over."""
        folder = self.site.adapters / dice.choice(ADAPTERS)
        with SharedTensors(load_file(folder / "adapter_model.safetensors")) as shared:
            body = {"lora_name": CHANGES, "load_inplace": True, "shared_memory": shared.name}
            body["tensors"] = msgspec.to_builtins(shared.tensors)
            body["adapter_config"] = json.loads((folder / "adapter_config.json").read_text())
            self._post("/v1/load_lora_adapter", body)

    def _weights_of(self, dice: random.Random, **fields: Any) -> dict[str, Any]:
        update = {"path": str(dice.choice(self._weights)), **fields}
        return {"update_info": update, "mode": dice.choice(("keep", "wait"))}

    def _call(self, path: str, limit_s: float = CALL_LIMIT_S, **query: Any) -> None:
        self._judge(path, self._send("POST", f"{path}?{urlencode(query)}", b"", limit_s))

    def _post(self, path: str, body: dict[str, Any], gone: int = 200) -> None:
        """gone: the status when another operator has been faster."""
        answer = self._send("POST", path, json.dumps(body).encode(), CALL_LIMIT_S)
        if answer.status != gone:
            self._judge(path, answer)

    def _insist(self, method: str, path: str) -> Answer | None:
        """Make a call until it goes well; a note when it never does."""
        end = time.monotonic() + INSIST_S
        while time.monotonic() < end:
            answer = self._send(method, path, b"", CALL_LIMIT_S)
            if answer.status == 200:
                return answer
            self._judge(path, answer)
            time.sleep(AGAIN_S)
        self.tally.halt(f"{path} never went well in {INSIST_S:g} s")
        return None

    def _send(self, method: str, target: str, body: bytes, limit_s: float) -> Answer:
        return send(self.site.target, Row(target, target, body, method=method), limit_s)

    def _judge(self, path: str, answer: Answer) -> None:
        """An answer, a refusal, or a server that has died or whose engine has."""
        if answer.status > 0 and answer.status not in (200, NOT_NOW, *REFUSALS):
            self.tally.leak(f"{path} answered {answer.status}: {answer.body[:300]!r}")


def _copies(folder: Path) -> list[Path]:
    """Checkpoints with the bytes of the one that is served, each a file of its own name."""
    folder.mkdir()
    source = default_model()
    copies = [folder / f"weights-{number}{source.suffix}" for number in range(COPIES)]
    for copy in copies:
        with suppress(OSError):
            os.link(source, copy)
        if not copy.exists():
            shutil.copyfile(source, copy)
    return copies
