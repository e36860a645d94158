"""Kernels with a layout of their own: even and odd inputs apart, so that no nibble is ever moved."""

import torch

from core.api.reason import Reason
from core_runtime.layers.reference import ReferenceKernels


class Nibble4Linear:
    """One matrix: low [N, K / 2] holds the even inputs, high the odd ones, both scaled rows of bytes."""

    def __init__(self, weight, bias):
        self.weight, self.bias, self.shape, self.nbytes = weight, bias, weight.shape, weight.nbytes

    def __call__(self, x, out, *, accumulate=False):
        """One row after the other, so that a row never depends on its neighbours."""
        weight, half = self.weight, self.weight.group_size // 2
        scale = weight.scale.float().repeat_interleave(half, 1)
        low, high = (weight.values & 15).float() - weight.zero, (weight.values >> 4).float() - weight.zero
        low, high = low * scale, high * scale
        if weight.minimum is not None:
            minimum = weight.minimum.float().repeat_interleave(half, 1)
            low, high = low + minimum, high + minimum
        for row, target in zip(x.float(), out, strict=True):
            product = low @ row[0::2] + high @ row[1::2]
            product = product if self.bias is None else product + self.bias
            target.copy_(target + product if accumulate else product)

    def rows(self, ids, out):
        """Rows of the matrix."""
        out.copy_(self.weight.rows(ids).dequantize())


class Nibble4Kernels(ReferenceKernels):
    """The kernels contract; everything but `linear` is refused and left to others."""

    name = "nibble4"
    numerics = "nibble4-1"

    def supports(self, query):
        """4-bit groups, inputs as they are."""
        wanted = {"device": "cpu", "op": "linear", "format": "int4_groups", "activation": "none"}
        return [Reason(k, v, str(getattr(query, k))) for k, v in wanted.items() if getattr(query, k) != v]

    def linear(self, weight, *, activation, bias=None):
        """Prepare a matrix."""
        return Nibble4Linear(weight, None if bias is None else torch.as_tensor(bias))
