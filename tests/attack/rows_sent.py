"""Adapters that are sent in shared memory: descriptions that lie, and memory that is not what it should be.

Owns: the memory, and the rows about it. Never does: send anything. Called by: the phase of adapters.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import load_file

from core import SharedTensors
from tests.attack.make import given, nested
from tests.attack.row import Row
from tests.attack.rows_adapters import CONFIG, LOAD, LONG, OUTSIDE, REFUSED, WEIGHTS

LINKED, SPARSE = "core-attack-link", "core-attack-sparse"


class Sent:
    """An adapter in shared memory, as a request describes it."""

    def __init__(self, folder: Path, shared: SharedTensors) -> None:
        self.tensors: list[dict[str, Any]] = msgspec.to_builtins(shared.tensors)
        self.name = shared.name
        self.configuration: dict[str, Any] = json.loads((folder / CONFIG).read_text())

    def load(self, name: str, **fields: Any) -> bytes:
        """The body of a load. fields: instead of the right ones, or besides them."""
        body = {"lora_name": name, "shared_memory": self.name, "tensors": self.tensors}
        return given({**body, "adapter_config": self.configuration, **fields})

    def first(self, **fields: Any) -> list[dict[str, Any]]:
        """All tensors, the first one described otherwise."""
        return [self.tensors[0] | fields, *self.tensors[1:]]


@contextmanager
def sent(folder: Path) -> Iterator[Sent]:
    """Put an adapter of a folder into shared memory, until the end of the block."""
    with SharedTensors(load_file(folder / WEIGHTS)) as shared:
        yield Sent(folder, shared)


@contextmanager
def traps() -> Iterator[None]:
    """A link to a secret and a terabyte of zeros, where shared memory lies."""
    link, sparse = Path("/dev/shm", LINKED), Path("/dev/shm", SPARSE)
    link.unlink(missing_ok=True)  # of a run that was killed
    try:
        link.symlink_to("/etc/passwd")
        with sparse.open("wb") as file, suppress(OSError):  # this machine's shared memory may have a limit
            os.truncate(file.fileno(), 1 << 40)
        yield
    finally:
        link.unlink(missing_ok=True)
        sparse.unlink(missing_ok=True)


def rows(good: Sent) -> list[Row]:
    """All of them; none of them loads anything. good: an adapter that could be loaded."""
    bodies = {
        "memory that is not there": good.load("x", shared_memory="core-nowhere"),
        "memory outside": good.load("x", shared_memory="../../etc/passwd"),
        "memory that is a link out": good.load("x", shared_memory=LINKED),
        "a terabyte of memory": good.load("x", shared_memory=SPARSE, tensors=good.first(shape=[1 << 36])),
        "memory with a NUL in its name": good.load("x", shared_memory="a\0b"),
        "memory of a name of 10,000 letters": good.load("x", shared_memory=LONG),
        "memory and a path": good.load("x", lora_path="good"),
        "tensors of memory that is not named": good.load("x", shared_memory=None),
        "a tensor behind the end": good.load("x", tensors=good.first(offset=1 << 50)),
        "a tensor of 2^400 numbers": good.load("x", tensors=good.first(shape=[1 << 50] * 8)),
        "a tensor of a negative length": good.load("x", tensors=good.first(shape=[-1, 4])),
        "a tensor before the memory": good.load("x", tensors=good.first(offset=-64)),
        "a tensor of integers": good.load("x", tensors=good.first(dtype="int64")),
        "a tensor of no type": good.load("x", tensors=good.first(dtype=LONG)),
        "a tensor named twice": good.load("x", tensors=[*good.tensors, good.tensors[0]]),
        "a tensor of no module": good.load("x", tensors=good.first(name="base_model.model.nowhere.lora_A.weight")),
        "tensors that overlap": good.load("x", tensors=[good.tensors[0] | {"name": str(n)} for n in range(5_000)]),
        "no tensors": good.load("x", tensors=[]),
        "no configuration": good.load("x", adapter_config=None),
        "a configuration of another rank": good.load("x", adapter_config=good.configuration | {"r": 2**70}),
        "a configuration of 8 MB": good.load("x", adapter_config=good.configuration | {"x": "y" * (8 << 20)}),
        "a configuration that is nested": good.load("x").replace(
            b'"adapter_config": {', f'"adapter_config": {{"x": {nested(100_000)}, '.encode()
        ),
    }
    allowed = OUTSIDE | REFUSED | {413}
    return [Row(f"sending {what}", LOAD, body, seconds=10.0, allowed=allowed) for what, body in bodies.items()]
