"""A method with a weight format of its own, which the reference kernels serve through `rows` and `dequantize`."""

from dataclasses import dataclass

import torch

from core.api.specs import DensePlan, PartPlan

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class Fp8Rows:
    """W[n, k] = values[n, k] * scale[n]. values: float8 [N, K]; scale: float32 [N]."""

    values: torch.Tensor
    scale: torch.Tensor
    name: str = "rows_fp8"

    @property
    def shape(self):
        """(N, K)."""
        return tuple(self.values.shape)

    @property
    def nbytes(self):
        """Bytes held."""
        return self.values.nbytes + self.scale.nbytes

    def dequantize(self):
        """W as float32."""
        return self.values.float() * self.scale.unsqueeze(-1)

    def rows(self, index):
        """Some rows as a weight of their own."""
        return Fp8Rows(self.values.view(torch.uint8)[index].view(self.values.dtype), self.scale[index])


class RowsFp8:
    """The quantization contract, for plain checkpoints."""

    def __init__(self, kind):
        self.dtype = DTYPES[kind]

    def plan(self, spec):
        """Linear layers; a fuse key of its own for each part, since only the core's formats can be fused."""
        reads = (f"{spec.name}.weight",)
        if spec.role != "linear":
            return DensePlan(reads)
        n, k = spec.shape
        return PartPlan(reads, "rows_fp8", "none", f"rows_fp8/{spec.name}", n * k + 4 * n)

    def pack(self, spec, tensors):
        """Scale each row to the largest number of the type."""
        (weight,) = tensors.values()
        weight = weight.float()
        scale = (weight.abs().amax(1) / torch.finfo(self.dtype).max).clamp_min(1e-30)
        return Fp8Rows((weight / scale.unsqueeze(-1)).to(self.dtype), scale)
