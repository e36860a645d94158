"""What adapters change in the up-projection of a latent, which latent attention computes in two halves, head by head.

Owns: the division of such a change into one for each head and half. Never does: read an adapter. Called by: latent
attention, in a model with adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from core.api.specs import LatentSpec
from core_runtime.contracts import LowRankTable, PackedLowRank, is_recordable
from core_runtime.layers.adapted import StepAdapters
from core_runtime.weights.low_rank import LowRank


@dataclass(frozen=True, slots=True)
class PackedHeads:
    """The change of one adapter, for both halves of each head."""

    to_latent: list[PackedLowRank]
    from_latent: list[PackedLowRank]

    @property
    def nbytes(self) -> int:
        """Bytes of all changes."""
        return sum(packed.nbytes for packed in (*self.to_latent, *self.from_latent))


class AbsorbedAdapters:
    """The adapters of the up-projection W of a latent: rows of a head's keys, then of its values, for each head.

    step: the adapters of the current step.
    make: makes the table of a layer of shape (N, K).
    """

    def __init__(self, step: StepAdapters, mixer: LatentSpec, make: Callable[[tuple[int, int]], LowRankTable]) -> None:
        self._step = step
        self._mixer = mixer
        self._to_latent = [make((mixer.rank, mixer.head_size_nope)) for _ in range(mixer.num_heads)]
        self._from_latent = [make((mixer.head_size_v, mixer.rank)) for _ in range(mixer.num_heads)]

    @property
    def capturable(self) -> bool:
        """Whether all tables can be recorded."""
        return all(is_recordable(table) for table in (*self._to_latent, *self._from_latent))

    @property
    def active(self) -> bool:
        """Whether the current step has adapters."""
        return self._step.rows is not None

    def pack(self, updates: Sequence[LowRank]) -> PackedHeads:
        """Repack the one update of the whole projection. Raises ValueError where it does not fit."""
        (update,) = updates
        if update.gain is not None or update.shift is not None:
            raise ValueError("it has DoRA or a bias for the up-projection of latents, which is not served there")
        mixer = self._mixer
        heads = update.b.unflatten(0, (mixer.num_heads, -1))
        keys, values = heads.split([mixer.head_size_nope, mixer.head_size_v], dim=1)
        turned = update.a.T.contiguous()
        packed = PackedHeads([], [])
        for table, rows in zip(self._to_latent, keys, strict=True):
            # Queries multiply the keys' matrix from the other side, so the factors change places.
            packed.to_latent.append(table.pack([LowRank(rows.T.contiguous(), turned, update.scale)]))
        for table, rows in zip(self._from_latent, values, strict=True):
            packed.from_latent.append(table.pack([LowRank(update.a, rows.contiguous(), update.scale)]))
        return packed

    def set(self, row: int, packed: PackedHeads) -> None:
        """Put an adapter into a row of all tables."""
        for table, one in zip(self._to_latent, packed.to_latent, strict=True):
            table.set(row, one)
        for table, one in zip(self._from_latent, packed.from_latent, strict=True):
            table.set(row, one)

    def clear(self, row: int) -> None:
        """Empty a row of all tables."""
        for table in (*self._to_latent, *self._from_latent):
            table.clear(row)

    def to_latent(self, x: Tensor, out: Tensor) -> None:
        """Change out[T, H, R], the products of queries x [T, H, Dn]."""
        self._run(self._to_latent, x, out)

    def from_latent(self, x: Tensor, out: Tensor) -> None:
        """Change out[T, H, Dv], the products of latents x [T, H, R]."""
        self._run(self._from_latent, x, out)

    def _run(self, tables: Sequence[LowRankTable], x: Tensor, out: Tensor) -> None:
        rows = self._step.rows
        assert rows is not None, "a step without adapters has nothing to change"
        for table, inputs, outputs in zip(tables, x.unbind(1), out.unbind(1), strict=True):
            table(inputs, rows, outputs)
