"""A norm whose output is multiplied by a gate that a small MLP computes from it (A.X K2).

Owns: the gate. Never does: record its operations, as its tensors are made in each step. Called by: the decoder, as any norm.
"""

from __future__ import annotations

from torch import Tensor

from core_runtime.layers.linear import Linear
from core_runtime.models.norm import Norm


class GatedNorm(Norm):
    """y * sigmoid(out_of(silu(into(y)))), with y the norm of x.

    norm: the norm, whose weights and adapters this one takes over.
    into: projection from H to the MLP's inner size. out_of: projection back.
    """

    __slots__ = ("_into", "_out_of")

    def __init__(self, norm: Norm, into: Linear, out_of: Linear) -> None:
        for name in Norm.__slots__:
            setattr(self, name, getattr(norm, name))
        self._into = into
        self._out_of = out_of

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Write the gated norm of x [T, H] to out [T, H]; out may be x."""
        super().__call__(x, out)
        self._open(out)

    def of_rows(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Write the gated norms of the rows `rows` (int64 [R]) of x to out [R, H]."""
        super().of_rows(x, rows, out)
        self._open(out)

    def _open(self, y: Tensor) -> None:
        inner = y.new_empty(len(y), self._into.out_features)
        gate = y.new_empty(y.shape)
        self._into(y, inner)
        # Kernels alone: torch rounds the last elements of a tensor in another way, which would depend on the batch.
        self._kernels.activate(inner, "silu", inner)
        self._out_of(inner, gate)
        self._kernels.open_gate(gate, y)
