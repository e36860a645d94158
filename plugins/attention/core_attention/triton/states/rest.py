"""Steps around the recurrence of a layer with a state: products, norms, gates, and their launches.

Owns: these launches. Never does: touch a state. Called by: the ops.
"""

from __future__ import annotations

from typing import Final

import triton
from torch import Tensor

from core_attention.triton.states.common import FLAGS, scratch
from core_attention.triton.states.finish_kernel import finish, norm_part, product

PRODUCT_TILE: Final = 16
PRODUCT_STEP: Final = 128


class Finish:
    """The steps after a scan, see `finish`. width: numbers of a row. unit: numbers normalized together."""

    def __init__(
        self,
        width: int,
        unit: int,
        *,
        skip: Tensor | None = None,
        skip_width: int = 0,
        norm: str = "none",
        weight: Tensor | None = None,
        weight_shared: bool = False,
        sigmoid: bool = False,
        gate_scale: float = 1.0,
        eps: float = 0.0,
    ) -> None:
        self.skip = skip
        self.weight = weight
        self.units = triton.cdiv(width, unit)
        self.scalars = (gate_scale, eps)
        self.constants = {
            "WIDTH": width,
            "UNIT": unit,
            "PADDED": triton.next_power_of_2(unit),
            "SKIP_WIDTH": skip_width,
            "NORM": norm,
            "WEIGHT_SHARED": weight_shared,
            "SIGMOID": sigmoid,
            **FLAGS,
        }

    def __call__(self, y: Tensor, mixed: Tensor, gates: Tensor, out: Tensor) -> None:
        """Compute out [T, width] of y, with skip, norm and gate."""
        skip = y if self.skip is None else self.skip
        weight = y if self.weight is None else self.weight
        strides = [tensor.stride(0) for tensor in (y, mixed, gates, out)]
        grid = (len(y), self.units)
        finish[grid](y, mixed, gates, skip, weight, out, *strides, *self.scalars, **self.constants)


def multiply(x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
    """Compute out [T, N] = x [T, K] @ weight.T; with a bias, its softplus."""
    outputs, inputs = weight.shape
    grid = (len(x), triton.cdiv(outputs, PRODUCT_TILE))
    constants = {"OUTPUTS": outputs, "INPUTS": inputs, "TILE": PRODUCT_TILE, "STEP": PRODUCT_STEP, **FLAGS}
    added = weight if bias is None else bias
    product[grid](x, weight, added, out, x.stride(0), out.stride(0), SOFTPLUS=bias is not None, **constants)


def projected(x: Tensor, weight: Tensor | None) -> Tensor:
    """Return x [T, K] times a matrix in float32, or x itself without one."""
    if weight is None:
        return x
    out = scratch(x, len(weight))
    multiply(x, weight, out)
    return out


def normalize(part: Tensor, weight: Tensor | None, eps: float) -> None:
    """Normalize the rows of a part [T, W] in place."""
    width = part.shape[1]
    table = part if weight is None else weight
    constants = {"WIDTH": width, "PADDED": triton.next_power_of_2(width), **FLAGS}
    norm_part[(len(part),)](part, table, part.stride(0), eps, HAS_WEIGHT=weight is not None, **constants)
