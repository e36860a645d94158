"""The schemes: what a weight becomes, and to what its inputs are rounded. Torch-free.

Owns: one row a scheme. Never does: quantize (`rounding` does). Called by: the manifests, the method.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.api.specs import Activation


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to hold a matrix.

    format:      canonical format name. bits: of one weight. block: inputs that share a scale; 0: all of a row.
    scale_bytes: of a block's scale. row_bytes: of what a row has besides.
    activations: for the run's dtype bfloat16, and those that the user may ask for instead.
    head:        name of the scheme for the embedding and the output head, which decide most about quality.
    """

    name: str
    summary: str
    format: str
    bits: int
    block: int
    scale_bytes: int
    row_bytes: int
    activations: tuple[Activation, ...]
    head: str

    def nbytes(self, n: int, k: int) -> int:
        """Bytes of a canonical weight [n, k]."""
        return n * (k * self.bits // 8 + (k // self.block if self.block else 1) * self.scale_bytes + self.row_bytes)


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            "int8",
            "8-bit integers, a scale for each output; inputs too, a scale for each row",
            "int8_channel",
            *(8, 0, 4, 0),
            activations=("int8_row", "none"),
            head="int8",
        ),
        Scheme(
            "fp8",
            "8-bit floats (e4m3), a scale for each output",
            "fp8_e4m3",
            *(8, 0, 4, 0),
            activations=("bf16", "none"),
            head="int8",
        ),
        Scheme(
            "nf4",
            "4-bit normal floats, a float32 scale for 64 inputs",
            "nf4",
            *(4, 64, 4, 0),
            activations=("bf16", "none"),
            head="int8",
        ),
        Scheme(
            "fp4",
            "4-bit floats, a float32 scale for 64 inputs",
            "fp4",
            *(4, 64, 4, 0),
            activations=("bf16", "none"),
            head="int8",
        ),
        Scheme(
            "mxfp4",
            "4-bit floats (e2m1), a power of two for 32 inputs",
            "mxfp4",
            *(4, 32, 1, 0),
            activations=("int8", "bf16", "none"),
            head="int8",
        ),
        Scheme(
            "nvfp4",
            "4-bit floats (e2m1), an 8-bit float for 16 inputs",
            "nvfp4",
            *(4, 16, 1, 4),
            activations=("int8", "bf16", "none"),
            head="int8",
        ),
    )
}
