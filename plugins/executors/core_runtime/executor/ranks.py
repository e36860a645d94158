"""One of several ranks that compute a model together, as its worker sees it.

Owns: `Ranks`: which part of the model a worker holds, and what it exchanges with the others. Never does: start a rank, or move
plans. Called by: the worker and the parts that it builds.

Rank 0 decides: it draws the tokens and makes the drafts of a step, and the other ranks take them over. So grammars, logits
processors, proposers and log-probabilities exist on rank 0 alone, and ranks cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from numpy.typing import NDArray
from torch import Tensor

from core.api.errors import UserError
from core.api.step_plan import Slot
from core_runtime.contracts import Communicates, Communicator, Runtime
from core_runtime.models.decoder import Decoder
from core_runtime.sampling import Sampler
from core_runtime.sampling.rows import SampleRows
from core_runtime.sampling.sampler import RunCall, run_plainly
from core_runtime.specs.model_part import Part

Drafts = dict[Slot, list[int]]
_DRAFTS: msgspec.msgpack.Decoder[Drafts] = msgspec.msgpack.Decoder(Drafts)
ELSEWHERE = "Rank 0 could not sample this row."


class RankGroup(Protocol):
    """The processes of the ranks, for what they exchange apart from tensors."""

    rank: int
    size: int

    def broadcast(self, array: NDArray[Any], root: int) -> None:
        """Replace a contiguous array by the root's."""
        ...

    def share(self, data: bytes, root: int = 0) -> bytes:
        """Return the root's bytes."""
        ...


class Reduce:
    """The sum over ranks, as a decoder calls it. communicator: see `Communicator`."""

    def __init__(self, communicator: Communicator) -> None:
        self.capturable = communicator.capturable
        self._all_reduce = communicator.all_reduce

    def __call__(self, x: Tensor) -> None:
        """Replace x, float32 [T, H], by the sum over all ranks."""
        self._all_reduce(x)


class RankSampler(Sampler):
    """Draws on rank 0, and gives its tokens to the other ranks. group: set before the first step."""

    group: RankGroup

    def sample(self, logits: Tensor, rows: SampleRows, start: int = 0, run: RunCall = run_plainly) -> None:
        """Sample rows as `Sampler.sample` does; ranks other than 0 ignore their logits."""
        stop = start + logits.shape[0]
        leads = self.group.rank == 0
        if leads:
            super().sample(logits, rows, start, run)
        tokens = rows.tokens[start:stop]
        self.group.broadcast(tokens, 0)
        if not leads and len(tokens) and tokens.min() < 0:
            rows.errors |= {start + row: ELSEWHERE for row in (tokens < 0).nonzero()[0].tolist()}


class Ranks:
    """What a worker needs to be one of several ranks. The executor makes it.

    part: the part of the model that this rank holds.
    group: the processes of the ranks.
    """

    def __init__(self, part: Part, group: RankGroup) -> None:
        self.part = part
        self.group = group
        self._communicator: Communicator | None = None

    @property
    def communicator(self) -> Communicator:
        """The communicator of the opened device."""
        assert self._communicator is not None, "the device is opened before a model is built"
        return self._communicator

    def connect(self, runtime: Runtime) -> None:
        """Join the others with a device that was just opened. Raises UserError for one that cannot."""
        self._communicator = self._open(runtime)

    def _open(self, runtime: Runtime) -> Communicator:
        """Return the communicator of a device."""
        if not isinstance(runtime, Communicates):
            raise UserError(
                f"The device {runtime.device} cannot be one of several ranks; use one rank, or --device cpu."
            )
        return runtime.communicator(self.group)

    def join(self, model: object, vocab_size: int) -> None:
        """Connect a built model. Raises UserError for modules of transformers, which cannot be divided."""
        if not isinstance(model, Decoder):
            raise UserError("Layers of transformers cannot be divided; use one rank.")
        model.join(self.communicator, vocab_size)

    def share(self, proposed: Mapping[Slot, list[int]]) -> Drafts:
        """Return the drafts of rank 0. proposed: drafts of this rank."""
        data = msgspec.msgpack.encode(proposed) if self.group.rank == 0 else b""
        return _DRAFTS.decode(self.group.share(data))
