"""The description of embeddings for each layer. Torch-free.

Owns: `LayerInputs`, the names and shapes of its matrices and norms. Never does: compute (`core_runtime.models.layer_inputs`
does). Called by: families, which fill it in, and `DecoderSpec`.
"""

from __future__ import annotations

import msgspec

from core.api.specs import LayerSpec

TOKENS = "model.embed_tokens_per_layer"
PROJECTION = "model.per_layer_model_projection"
NORM = "model.per_layer_projection_norm"


class LayerInputs(msgspec.Struct, frozen=True):
    """A second embedding, with `size` numbers for each block of the model (Gemma 3n, Gemma 4).

    Each block gets the numbers of its own, plus as many of a normalized projection of the usual embedding; after its MLP,
    they multiply an activated projection of the residual stream, and a projection of the product is normalized and added.

    vocab_size: tokens. count: blocks of the whole model.
    media: tokens that stand for rows of media, which have the numbers of the token `pad`.
    """

    size: int
    vocab_size: int
    count: int
    media: tuple[int, ...] = ()
    pad: int = 0

    @property
    def width(self) -> int:
        """Numbers of a token, for all blocks."""
        return self.size * self.count

    def tokens(self) -> LayerSpec:
        """Return the second embedding."""
        return LayerSpec(TOKENS, "embedding", (self.vocab_size, self.width))

    def projection(self, hidden: int) -> LayerSpec:
        """Return the projection of the usual embedding."""
        return LayerSpec(PROJECTION, "linear", (self.width, hidden))

    def linears(self, block: str, hidden: int) -> dict[str, tuple[LayerSpec, ...]]:
        """Return the two projections of the block of that name."""
        return {
            "layer_gate": (LayerSpec(f"{block}.per_layer_input_gate", "linear", (self.size, hidden)),),
            "layer_out": (LayerSpec(f"{block}.per_layer_projection", "linear", (hidden, self.size)),),
        }

    def buffers(self) -> dict[str, int]:
        """Return the width of each step buffer."""
        return {
            "layer_inputs": self.width,
            "layer_tokens": self.width,
            "layer_gate": self.size,
            "layer_activated": self.size,
        }
