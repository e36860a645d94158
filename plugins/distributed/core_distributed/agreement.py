"""What all ranks must agree on before the first step.

Owns: `Standing`, a rank's answer, and the comparison of all answers. Never does: build a worker.
Called by: the executor and the other ranks, once their workers are built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final, TypeVar

import msgspec

from core.api.errors import CoreError, UserError
from core.kv.fingerprint import weights_digest
from core_distributed.layout import Layout
from core_runtime.executor.worker import Worker

Answer = TypeVar("Answer")
COMMON: Final = ("version", "weights")
"""What ranks of different stages have in common."""
ROOM: Final = 8192
"""Bytes of an answer, which all ranks send with the same length."""


class Standing(msgspec.Struct, frozen=True):
    """How a rank stands after its start.

    error: why it could not be built; empty: it could.
    of_user: whether the user can mend that.
    version: of the engine.
    numerics: arithmetic that results depend on.
    weights: digest of the files that weights were read from.
    groups: digest of the groups of layers that share a block table.
    num_blocks: blocks that its cache has room for.
    page_bytes: bytes of its part of one block.
    stage: of its layers.
    """

    error: str = ""
    of_user: bool = False
    version: str = ""
    numerics: str = ""
    weights: str = ""
    groups: str = ""
    num_blocks: int = 0
    page_bytes: int = 0
    stage: int = 0


def standing_of(worker: Worker, layout: Layout, rank: int) -> Standing:
    """Return how a rank stands whose worker was built."""
    # Copies of a file on several hosts have other paths and times.
    weights = _digest(worker.base_files) if layout.hosts == 1 else weights_digest(worker.config.model.model)
    return Standing(
        version=version("core-engine"),
        numerics=worker.numerics,
        weights=weights,
        groups=_digest(worker.groups),
        num_blocks=worker.num_blocks,
        page_bytes=worker.kv_memory.page_bytes,
        stage=layout.stage_of(rank),
    )


def failed(error: Exception) -> Standing:
    """Return how a rank stands whose worker could not be built."""
    text = str(error) if isinstance(error, CoreError) else f"{type(error).__name__}: {error}"
    return Standing(error=text[: ROOM // 4], of_user=isinstance(error, UserError))


def encode(answer: msgspec.Struct) -> bytes:
    """Return an answer as `ROOM` bytes."""
    data = msgspec.msgpack.encode(answer)
    return len(data).to_bytes(4, "little") + data.ljust(ROOM - 4, b"\0")


def decode(data: bytes, kind: type[Answer]) -> Answer:
    """Read an answer of some kind."""
    length = int.from_bytes(data[:4], "little")
    return msgspec.msgpack.decode(data[4 : 4 + length], type=kind)


def agreed_blocks(standings: Sequence[Standing]) -> int:
    """Return the number of blocks that all ranks have. Raises UserError and CoreError where ranks failed or differ."""
    for rank, standing in enumerate(standings):
        if standing.error:
            kind = UserError if standing.of_user else CoreError
            raise kind(f"Rank {rank} could not start: {standing.error}")
    for rank, standing in enumerate(standings):
        # Stages have layers of their own, whose arithmetic and groups may differ.
        peer = next(index for index, other in enumerate(standings) if other.stage == standing.stage)
        for name in ("version", "weights", "numerics", "groups"):
            model = 0 if name in COMMON else peer
            own, other = getattr(standings[model], name), getattr(standing, name)
            if own != other:
                raise CoreError(f"Rank {rank} differs from rank {model} in {name}: {other!r} instead of {own!r}.")
    return min(standing.num_blocks for standing in standings)


def joint_numerics(standings: Sequence[Standing]) -> str:
    """Return the arithmetic of all stages."""
    return " then ".join(dict.fromkeys(standing.numerics for standing in standings))


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(value)).hexdigest()
