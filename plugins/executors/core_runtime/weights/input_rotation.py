"""The rotation of inputs, or outputs, by a matrix that stands beside a model: Hadamard's, or one that a checkpoint stores.

Owns: the fast transform, in a fixed order of additions, and the product with a stored matrix. Never does: choose a matrix.
Called by: `PreparedInputs`, whose kernel applies these steps.

The matrix is the same for each block of neighbouring numbers. Every addition is of two numbers of one row, so the bits of a row
do not depend on other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from core_runtime.contracts.linear_kernels import LinearKernel
from core_runtime.weights.canonical import CanonicalWeight, whole_groups
from core_runtime.weights.dense import Dense


@dataclass(frozen=True, slots=True)
class HadamardRotation:
    """Blocks of x times Hadamard's matrix in Sylvester's order, divided by a number; one step of `PreparedInputs`.

    size: numbers of a block, a power of two.
    divisor: usually the root of `size`, which makes the matrix orthonormal.
    order: int64 [size] as bytes: the matrix is H[order][:, order]; empty: H.
    signs: int8 [size] as bytes, each 1 or -1, by which the matrix's rows are multiplied; empty: none.
    transposed: whether the matrix with its signs is transposed.
    """

    size: int
    divisor: float
    order: bytes = field(default=b"", repr=False)
    signs: bytes = field(default=b"", repr=False)
    transposed: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return len(self.order) + len(self.signs)

    def prepared(self, linear: Callable[[CanonicalWeight], LinearKernel]) -> HadamardRotation:
        """Return the step itself: it has no product."""
        return self

    def columns(self, index: Tensor | slice, inputs: int) -> HadamardRotation:
        """Return the step for some whole blocks. Raises ValueError for others."""
        whole_groups(index, inputs, self.size, "rotated")
        return self

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [T, K] rotated, in its own dtype; computed in float32."""
        blocks = x.float().unflatten(-1, (-1, self.size))
        if self.signs:
            signs = torch.frombuffer(bytearray(self.signs), dtype=torch.int8).to(x.device, torch.float32)
            turned = walsh(blocks) * signs if self.transposed else walsh(blocks * signs)
            return (turned / self.divisor).flatten(-2).to(x.dtype)
        if not self.order:
            return (walsh(blocks) / self.divisor).flatten(-2).to(x.dtype)
        order = torch.frombuffer(bytearray(self.order), dtype=torch.int64).to(x.device)
        mixed = torch.empty_like(blocks)
        mixed[..., order] = blocks
        return (walsh(mixed)[..., order] / self.divisor).flatten(-2).to(x.dtype)


@dataclass(frozen=True, slots=True)
class MatrixRotation:
    """Blocks of x times a matrix M, divided by a number; one step of `PreparedInputs`. Matrices with the same bytes are equal.

    size: numbers of a block.
    divisor: what the products are divided by.
    matrix: M, float32 [size, size] as bytes.
    """

    size: int
    divisor: float
    matrix: bytes = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return len(self.matrix)

    def prepared(self, linear: Callable[[CanonicalWeight], LinearKernel]) -> PreparedRotation:
        """Return the step with its product. linear: makes the kernel of a weight whose inputs are not rounded."""
        turned = torch.frombuffer(bytearray(self.matrix), dtype=torch.float32).view(self.size, self.size).T
        return PreparedRotation(self, linear(Dense(turned.contiguous())))

    def columns(self, index: Tensor | slice, inputs: int) -> MatrixRotation:
        """Return the step for some whole blocks. Raises ValueError for others."""
        whole_groups(index, inputs, self.size, "rotated")
        return self

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [T, K] rotated, by torch's own product: the meaning of `PreparedRotation`."""
        matrix = torch.frombuffer(bytearray(self.matrix), dtype=torch.float32).view(self.size, self.size).to(x.device)
        return ((x.float().unflatten(-1, (-1, self.size)) @ matrix) / self.divisor).flatten(-2).to(x.dtype)


class PreparedRotation:
    """A rotation whose product is a kernel of the device, so that a row has the same bits in any company."""

    def __init__(self, rotation: MatrixRotation, product: LinearKernel) -> None:
        self._rotation = rotation
        self._product = product

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [T, K] rotated, in its own dtype."""
        size = self._rotation.size
        blocks = x.reshape(-1, size)
        turned = torch.empty_like(blocks)
        self._product(blocks, turned)
        return (turned / self._rotation.divisor).view(x.shape)


def walsh(x: Tensor) -> Tensor:
    """Return x [..., n] times Hadamard's matrix in Sylvester's order, n a power of two (Yates 1937): sums and differences of
    numbers 1 apart, then 2, 4 and so on.
    """
    size = x.shape[-1]
    apart = 1
    while apart < size:
        first, second = x.unflatten(-1, (-1, 2, apart)).unbind(-2)
        x = torch.stack((first + second, first - second), -2).flatten(-3)
        apart *= 2
    return x
