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
    """The change of one adapter, for both halves of each head.

    gain: float32 [H, Dn], factors of the keys' outputs (DoRA), by which queries are multiplied instead; None: 1.
    """

    to_latent: list[PackedLowRank]
    from_latent: list[PackedLowRank]
    gain: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all changes."""
        own = 0 if self.gain is None else self.gain.nbytes
        return own + sum(packed.nbytes for packed in (*self.to_latent, *self.from_latent))


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
        self._gains: dict[int, Tensor] = {}

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
        mixer = self._mixer
        heads = update.b.unflatten(0, (mixer.num_heads, -1))
        keys, values = heads.split([mixer.head_size_nope, mixer.head_size_v], dim=1)
        turned = update.a.T.contiguous()
        key_gain, gain = self._halves(update.gain)
        # A shift of the keys adds the same number to all scores of a query, which its softmax takes away again.
        _, shift = self._halves(update.shift)
        packed = PackedHeads(
            [], [], None if key_gain is None else key_gain.to(self._to_latent[0].form.device, copy=True)
        )
        for table, rows in zip(self._to_latent, keys, strict=True):
            # Queries multiply the keys' matrix from the other side, so the factors change places.
            packed.to_latent.append(table.pack([LowRank(rows.T.contiguous(), turned, update.scale)]))
        for head, (table, rows) in enumerate(zip(self._from_latent, values, strict=True)):
            vectors = (None if one is None else one[head].contiguous() for one in (gain, shift))
            packed.from_latent.append(table.pack([LowRank(update.a, rows.contiguous(), update.scale, 0, *vectors)]))
        return packed

    def _halves(self, vector: Tensor | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Return the parts of a vector for the keys [H, Dn] and the values [H, Dv] of all heads."""
        if vector is None:
            return None, None
        mixer = self._mixer
        keys, values = vector.unflatten(0, (mixer.num_heads, -1)).split(
            [mixer.head_size_nope, mixer.head_size_v], dim=1
        )
        return keys, values

    def set(self, row: int, packed: PackedHeads) -> None:
        """Put an adapter into a row of all tables."""
        if packed.gain is not None:
            self._gains[row] = packed.gain
        for table, one in zip(self._to_latent, packed.to_latent, strict=True):
            table.set(row, one)
        for table, one in zip(self._from_latent, packed.from_latent, strict=True):
            table.set(row, one)

    def clear(self, row: int) -> None:
        """Empty a row of all tables."""
        self._gains.pop(row, None)
        for table in (*self._to_latent, *self._from_latent):
            table.clear(row)

    def scale_queries(self, x: Tensor) -> None:
        """Multiply queries x [T, H, Dn] by the gains of their adapters, before their own product."""
        rows = self._step.rows
        assert rows is not None, "a step without adapters has nothing to change"
        for row, gain in self._gains.items():
            places = (rows == row).nonzero().squeeze(1)
            if len(places):
                x[places] = (x[places] * gain).to(x.dtype)

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
