"""One of several ranks that compute a model together, as its worker sees it.

Owns: `Ranks`: which part of the model a worker holds, and what it exchanges with the others. Never does: start a rank, or move
plans. Called by: the worker and the parts that it builds.

Rank 0 decides: it draws the tokens and makes the drafts of a step, and the other ranks take them over. So grammars, logits
processors, proposers and log-probabilities exist on rank 0 alone, and ranks cannot drift apart. Ranks of one stage get the
tokens while they compute the step; with several stages, all of them get the tokens with a later plan (see `stage`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from numpy.typing import NDArray
from torch import Tensor

from core.api.config import CacheConfig
from core.api.errors import UserError
from core.api.specs import MixerSpec, StateSpec
from core.api.step_plan import Slot
from core_runtime.contracts import Communicates, Communicator, Runtime
from core_runtime.executor.stage import Stage
from core_runtime.models.decoder import Decoder
from core_runtime.sampling import Sampler
from core_runtime.sampling.rows import SampleRows
from core_runtime.sampling.sampler import RunCall, run_plainly
from core_runtime.specs.model_part import Part
from core_runtime.specs.module_spec import ModelSpec
from core_runtime.specs.stage_groups import of_stage
from core_runtime.specs.stages import fewest_together, mixer_ranges, stages_of

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


class SilentSampler(Sampler):
    """Draws nothing: the tokens come with a later plan."""

    def sample(self, logits: Tensor, rows: SampleRows, start: int = 0, run: RunCall = run_plainly) -> None:
        """Do nothing."""


class Ranks:
    """What a worker needs to be one of several ranks. The executor makes it.

    share: the rank's share of each layer.
    group: the processes of the ranks that divide the same layers.
    stage: the place in the row of stages; None: every rank has all layers.
    divides_keys: returns a backend that keeps a rank's part of the positions, from that of a layer, the communicator and the
        tokens of the longest sequence; None: a rank has all positions.
    """

    divides_keys: Callable[[Any, Communicator, int], Any] | None = None

    def __init__(self, share: Part, group: RankGroup, stage: Stage | None = None) -> None:
        self._share = share
        self.group = group
        self.stage = stage
        self._communicator: Communicator | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the rank that draws tokens and makes drafts."""
        return self._share.rank == 0 if self.stage is None else self.stage.leads

    @property
    def divides_layers(self) -> bool:
        """Whether several ranks share each layer."""
        return self._share.size > 1

    def part_of(self, spec: ModelSpec) -> Part:
        """Return the part of a model that this rank holds. Raises UserError."""
        if self.stage is None:
            return self._share
        stages = stages_of(spec, self.stage.count)
        return msgspec.structs.replace(self._share, blocks=stages[self.stage.index])

    def cache_of(self, cache: CacheConfig, spec: ModelSpec) -> CacheConfig:
        """Return the configuration of this rank's cache. cache: of the whole model."""
        if self.stage is None:
            return cache
        mixers = mixer_ranges(spec, stages_of(spec, self.stage.count))
        return msgspec.structs.replace(cache, groups=of_stage(cache.groups, mixers[self.stage.index]))

    def around(self, backends: Sequence[Any], mixers: Sequence[MixerSpec], longest: int) -> list[Any]:
        """Return the backends that layers call, from those that compute. longest: tokens of the longest sequence."""
        if self.divides_keys is None:
            return list(backends)
        made: dict[int, Any] = {}  # layers that share a backend share a step's metadata
        found: list[Any] = []
        for backend, mixer in zip(backends, mixers, strict=True):
            if isinstance(mixer, StateSpec):
                found.append(backend)
                continue
            if id(backend) not in made:
                made[id(backend)] = self.divides_keys(backend, self.communicator, longest)
            found.append(made[id(backend)])
        return found

    def fewest_together(self, spec: ModelSpec) -> int:
        """Return how many sequences are computed in one step rather than divided among steps in flight."""
        count = 1 if self.stage is None else self.stage.count
        return fewest_together(spec, stages_of(spec, count))

    def sampler(self) -> type[Sampler]:
        """Return the type of this rank's sampler."""
        if self.stage is None:
            return RankSampler
        return Sampler if self.leads else SilentSampler

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
        if self.divides_layers:
            model.join(self.communicator, vocab_size)

    def share(self, proposed: Mapping[Slot, list[int]]) -> Drafts:
        """Return the drafts of rank 0. proposed: drafts of this rank."""
        if self.stage is not None:
            return self.stage.share(dict(proposed))
        data = msgspec.msgpack.encode(proposed) if self.group.rank == 0 else b""
        return _DRAFTS.decode(self.group.share(data))
