"""The description of several residual streams of which each block computes one (AltUp, arXiv 2301.13310). Torch-free.

Owns: `Streams`, the names and shapes of its matrices, norms and tensors. Never does: compute (`core_runtime.models.streams`
does). Called by: families, which fill it in, and `DecoderSpec`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from core.api.specs import LayerSpec

INTO: Final = "model.altup_projections"
BACK: Final = "model.altup_unembed_projections"


class Streams(msgspec.Struct, frozen=True):
    """Residual streams: each block predicts all of them from all, computes the first, and corrects the others by it (Gemma 3n).

    Beside each mixer there is a small matrix of its input with a norm of its own (LAuReL, arXiv 2411.07501).

    count: number of streams, the first one included.
    rank: inner size of the small matrix.
    scaled: whether the corrected first stream has factors where embeddings for each layer read it.
    """

    count: int
    rank: int
    scaled: bool = True

    def projections(self, hidden: int) -> dict[str, LayerSpec]:
        """Return the matrices from the embedding to each further stream, and back, by role."""
        found = {}
        for number in range(self.count - 1):
            found[f"into_{number}"] = LayerSpec(f"{INTO}.{number}", "linear", (hidden, hidden))
            found[f"back_{number}"] = LayerSpec(f"{BACK}.{number}", "linear", (hidden, hidden))
        return found

    def linears(self, block: str, hidden: int) -> dict[str, tuple[LayerSpec, ...]]:
        """Return the matrices of the block of that name, by role."""
        return {
            "layer_router": (LayerSpec(f"{block}.altup.modality_router", "linear", (self.count, hidden)),),
            "layer_left": (LayerSpec(f"{block}.laurel.linear_left", "linear", (self.rank, hidden)),),
            "layer_right": (LayerSpec(f"{block}.laurel.linear_right", "linear", (hidden, self.rank)),),
        }

    def norms(self) -> dict[str, str]:
        """Return the names of norms in a block, by role."""
        return {"stream_router": "altup.router_norm", "laurel": "laurel.post_laurel_norm"}

    def tensors(self, block: str, hidden: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return name and shape of the small tensors of the block of that name, by role."""
        found: dict[str, tuple[str, tuple[int, ...]]] = {
            "predict": (f"{block}.altup.prediction_coefs.weight", (self.count**2, self.count)),
            "correct": (f"{block}.altup.correction_coefs.weight", (self.count, self.count)),
        }
        if self.scaled:
            found["scale"] = (f"{block}.altup.correct_output_scale", (hidden,))
        return found

    def buffers(self, hidden: int) -> dict[str, int]:
        """Return the width of each step buffer."""
        return {
            "streams": self.count * hidden,
            "stream_router": self.count,
            "laurel_inner": self.rank,
            "laurel": hidden,
        }
