"""The prepared weights of a decoder.

Owns: `DecoderWeights` and `BlockWeights`, and how many bytes they have. Never does: read a tensor, or run a kernel. Called by:
the loader (makes them), the decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

from core_runtime.contracts import LinearKernel
from core_runtime.layers.linear import Linear
from core_runtime.layers.partial_sums import PartialSums, SummedLinear
from core_runtime.models.draft_input import DraftInputWeights
from core_runtime.models.embedding import EmbeddingWeights
from core_runtime.models.experts_beside import ExpertsBeside
from core_runtime.models.head import HeadWeights
from core_runtime.models.layer_inputs import LayerInputWeights
from core_runtime.models.mixers import Mixer
from core_runtime.models.mlp import BlockMLP, ExpertsMLP
from core_runtime.models.norm import Norm
from core_runtime.models.streams import BlockStreams, StreamWeights
from core_runtime.models.vector_head import VectorHead


@dataclass(slots=True)
class BlockWeights:
    """The prepared weights of one block.

    mixers: none, one, or two that read the same input.
    mlp: the block's second half, or None.
    norms: norms by role, see `DecoderSpec.block_norms`.
    linears: linear layers of mixers and MLP by role, see `DecoderSpec.block_linears`.
    scalar: factor of the residual stream after the block.
    streams: weights for several streams, or None.
    """

    mixers: tuple[Mixer, ...]
    mlp: BlockMLP | ExpertsBeside | None
    norms: dict[str, Norm]
    linears: dict[str, Linear]
    scalar: float = 1.0
    streams: BlockStreams | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes of the block's matrices."""
        total = sum(mixer.nbytes for mixer in self.mixers)
        total += sum(linear.nbytes for role, linear in self.linears.items() if role.startswith("layer_"))
        return total if self.mlp is None else total + self.mlp.nbytes

    def attach(self, sums: PartialSums) -> None:
        """Bind the layers whose inputs ranks divide, and the experts, to the sums of their model."""
        for linear in self.linears.values():
            if isinstance(linear, SummedLinear):
                linear.attach(sums)
        if isinstance(self.mlp, ExpertsMLP | ExpertsBeside):
            self.mlp.attach(sums)


@dataclass(slots=True)
class DecoderWeights:
    """The prepared weights of a decoder. A tied head is the embedding's kernel.

    embedding: None where this part of the model does not hold it.
    head: None where this part of the model does not hold it.
    blocks: the blocks that this part of the model holds, in order.
    draft_input: input weights of a draft that takes in hidden states of its target, or None.
    pooling_head: head that turns pooled vectors into class scores, or None.
    borrowed: kernels among these that belong to another model.
    layer_inputs: embeddings for each block, or None.
    streams: matrices of several streams, or None.
    """

    embedding: EmbeddingWeights | None
    head: HeadWeights | None
    blocks: list[BlockWeights]
    draft_input: DraftInputWeights | None = None
    pooling_head: VectorHead | None = None
    borrowed: tuple[LinearKernel, ...] = ()
    layer_inputs: LayerInputWeights | None = None
    streams: StreamWeights | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes of all matrices. A tied matrix counts once, a borrowed one not at all."""
        total = sum(block.nbytes for block in self.blocks)
        kernels: list[LinearKernel | None] = []
        if self.embedding is not None:
            kernels += (self.embedding.tokens, self.embedding.project)
        if self.head is not None:
            kernels += (self.head.tokens, self.head.project)
        if self.draft_input is not None:
            kernels += self.draft_input.linears.values()
        if self.layer_inputs is not None:
            kernels += (self.layer_inputs.tokens, *self.layer_inputs.project.kernels)
        if self.streams is not None:
            kernels += (kernel for one in (*self.streams.into, *self.streams.back) for kernel in one.kernels)
        counted = list(self.borrowed)
        for kernel in kernels:
            if kernel is None or any(kernel is other for other in counted):
                continue
            counted.append(kernel)
            total += kernel.nbytes
        if self.pooling_head is not None:
            total += self.pooling_head.nbytes
        return total
