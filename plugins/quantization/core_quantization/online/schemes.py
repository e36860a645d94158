"""The schemes of online quantization: the format of a weight, and the precision to which its inputs are rounded.
Torch-free.

Owns: one row a scheme. Never does: quantize (`rounding` does). Called by: the manifests, the method.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.api.specs import Activation


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to store a matrix.

    name: name in `--quantization`.
    summary: one line for display.
    format: name of the canonical format.
    bits: bits of one weight.
    scale_bytes: bytes of a block's scale.
    activations: precisions of the inputs. The first is the default with dtype bfloat16; users may choose the others.
    block: inputs that share a scale; 0: a whole row.
    row_bytes: bytes of everything else that belongs to a row.
    head: name of the scheme for the embedding and the output head, which matter most for quality.
    by_row: the form with one scale a row, for inputs that the block does not divide and for activations with one scale
        a row; None: the scheme has no other form.
    declared_as: further names of the scheme in checkpoints' declarations.
    rounded_as: name of the rounding, where the format has several; empty: the format's name.
    """

    name: str
    summary: str
    format: str
    bits: int
    scale_bytes: int
    activations: tuple[Activation, ...]
    block: int = 0
    row_bytes: int = 0
    head: str = "int8"
    by_row: Scheme | None = None
    declared_as: tuple[str, ...] = ()
    rounded_as: str = ""

    @property
    def rounding(self) -> str:
        """Return the name of the rounding, see `core_quantization.online.rounding.quantize`."""
        return self.rounded_as or self.format

    def form(self, inputs: int, activation: Activation) -> Scheme:
        """Return the scheme for a matrix with `inputs` inputs: itself, or its form with one scale a row."""
        if self.by_row is None:
            return self
        by_block = inputs % self.block == 0 and activation != "int8_row"
        return self if by_block else self.by_row

    def nbytes(self, n: int, k: int) -> int:
        """Return the bytes of a canonical weight [n, k]."""
        value_bytes = k * self.bits // 8
        num_scales = k // self.block if self.block else 1
        return n * (value_bytes + num_scales * self.scale_bytes + self.row_bytes)


INT8_BY_ROW = Scheme(
    name="int8",
    summary="8-bit integers, a scale for each output",
    format="int8_channel",
    bits=8,
    scale_bytes=4,
    activations=("int8", "int8_row", "none"),
)
SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            name="int8",
            summary="8-bit integers, a bfloat16 scale for 32 inputs; inputs too, a scale for each row and 32 of them",
            format="int8_groups",
            bits=8,
            block=32,
            scale_bytes=2,
            activations=("int8", "int8_row", "none"),
            by_row=INT8_BY_ROW,
            declared_as=("rtn", "tpu_int8"),
        ),
        Scheme(
            name="fp8",
            summary="8-bit floats (e4m3), a scale for each output",
            format="fp8_e4m3",
            bits=8,
            scale_bytes=4,
            activations=("bf16", "none", "fp8_row"),
            declared_as=("fbgemm_fp8", "ptpc_fp8"),
        ),
        Scheme(
            name="nf4",
            summary="4-bit normal floats, a float32 scale for 64 inputs",
            format="nf4",
            bits=4,
            block=64,
            scale_bytes=4,
            activations=("bf16", "none"),
        ),
        Scheme(
            name="fp4",
            summary="4-bit floats, a float32 scale for 64 inputs",
            format="fp4",
            bits=4,
            block=64,
            scale_bytes=4,
            activations=("bf16", "none"),
        ),
        Scheme(
            name="mxfp4",
            summary="4-bit floats (e2m1), a power of two for 32 inputs",
            format="mxfp4",
            bits=4,
            block=32,
            scale_bytes=1,
            activations=("int8", "bf16", "none"),
        ),
        Scheme(
            name="mxfp6",
            summary="6-bit floats (e2m3), a power of two for 32 inputs, held in 8 bits with float32 scales",
            format="fp8_e4m3",
            bits=8,
            block=32,
            scale_bytes=4,
            activations=("bf16", "none"),
            rounded_as="mxfp6",
        ),
        Scheme(
            name="nvfp4",
            summary="4-bit floats (e2m1), an 8-bit float for 16 inputs",
            format="nvfp4",
            bits=4,
            block=16,
            scale_bytes=1,
            row_bytes=4,
            activations=("int8", "bf16", "none"),
        ),
    )
}
