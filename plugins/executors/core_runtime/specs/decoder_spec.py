"""The shape of a decoder, resolved from a configuration and its family row. Torch-free.

Owns: `DecoderSpec`, and what can be derived from it without weights: the matrices, tensors and buffers of the whole model.
Never does: read configurations (`core_runtime.models.families` does), name what is in a block (`block_parts` does) or
hold weights.
Called by: the decoder, the weight loading, the memory plan, the dummy loader.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from core.api.specs import LatentSpec, LayerSpec
from core_runtime.specs.block_parts import (
    ExpertLinears,
    block_buffers,
    correction_tensor,
    expert_factors,
    expert_linears,
    layer_linears,
    mixer_parts,
    mlp_linears,
    norms_around,
)
from core_runtime.specs.block_spec import (
    BlockOrder,
    BlockSpec,
    ExpertsSpec,
    HeadNormSpec,
    HeadsSpec,
    MLPSpec,
    NormSpec,
    PositionsSpec,
    TemperatureSpec,
)
from core_runtime.specs.decoder_shape import DecoderShape
from core_runtime.specs.draft_input import DRAFT_TOKENS
from core_runtime.specs.layer_inputs import NORM
from core_runtime.specs.local_spec import local_spec
from core_runtime.specs.mixer_parts import NormTensor
from core_runtime.specs.model_part import Part

__all__ = [
    "BlockOrder",
    "BlockSpec",
    "DecoderSpec",
    "ExpertsSpec",
    "HeadNormSpec",
    "HeadsSpec",
    "MLPSpec",
    "NormSpec",
    "PositionsSpec",
    "TemperatureSpec",
]


class DecoderSpec(DecoderShape, frozen=True, kw_only=True):
    """One decoder, or the part of one that a rank holds (see `local`); its fields are those of `DecoderShape`."""

    def local(self, part: Part) -> DecoderSpec:
        """Return the smaller model that a rank holds: its heads, inner sizes, experts, vocabulary and blocks.

        Raises UserError if something cannot be divided evenly.
        """
        return local_spec(self, part)

    def block_linears(self, index: int) -> dict[str, tuple[LayerSpec, ...]]:
        """Return the linear layers of one block by role, except its experts.

        Parts of one entry share their input and may be fused.
        """
        return {**mixer_parts(self, index).linears, **mlp_linears(self, index), **layer_linears(self, index)}

    def expert_linears(self, index: int) -> list[ExpertLinears]:
        """Return the experts of one block that this part holds, in the order of their ids; empty without experts."""
        return expert_linears(self, index)

    def fused_linears(self, index: int) -> list[tuple[LayerSpec, ...]]:
        """Return all matrices of one block; parts of one entry share their input and may be fused."""
        found = list(self.block_linears(index).values())
        for expert in self.expert_linears(index):
            found += (expert.gate_up, expert.down)
        return found

    def router_widths(self) -> tuple[int, int]:
        """Return the maximum of experts, and of choices per token, over all blocks; 0 without experts."""
        experts = [block.experts for block in self.blocks if block.experts is not None]
        most_experts = max((one.choices for one in experts), default=0)
        most_choices = max((one.routing.top_k for one in experts), default=0)
        return most_experts, most_choices

    def chosen_keys(self) -> int:
        """Return the keys that an index chooses for a query; 0 without an index."""
        found = [mixer.index for mixer in self.mixers if isinstance(mixer, LatentSpec)]
        return max((index.top_k for index in found if index is not None), default=0)

    def told_choices(self) -> int:
        """Return the choices of a token in all blocks with a router together."""
        return sum(block.experts.routing.top_k for block in self.blocks if block.experts is not None)

    def copies_rows(self) -> bool:
        """Whether blocks copy rows of a step, and so need a buffer `every_row` with the number of each."""
        return any(block.aside or block.keeps_as for block in self.blocks)

    def block_norms(self, index: int) -> dict[str, NormTensor]:
        """Return the norms of one block by role: around mixer and MLP, and those of the mixer itself."""
        return {**norms_around(self, index), **mixer_parts(self, index).norms}

    def activation_tensors(self, index: int) -> dict[str, tuple[int, ...]]:
        """Return name and shape of the tensors that hold parameters of the MLP's activation."""
        mlp = self.block_mlp(index)
        if mlp is None:
            return {}
        return {f"{self.block_name(index)}.mlp.{name}": shape for name, shape in mlp.activation_tensors}

    def layer_scalar(self, index: int) -> str | None:
        """Return the name of the tensor of one number that multiplies the residual stream after a block, or None."""
        return f"{self.block_name(index)}.layer_scalar" if self.blocks[index].layer_scalar else None

    def stream_tensors(self, index: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return name and shape of a block's small tensors for several streams, by role; see `Streams.tensors`."""
        return {} if self.streams is None else self.streams.tensors(self.block_name(index), self.hidden_size)

    def correction(self, index: int) -> tuple[str, int] | None:
        """Return tensor name and size of a router bias that affects the choice only, or None."""
        return correction_tensor(self, index)

    def expert_factors(self, index: int) -> tuple[str, int] | None:
        """Return tensor name and size of the factors of chosen experts' weights, or None."""
        return expert_factors(self, index)

    def buffers(self) -> dict[str, int]:
        """Return the width of each step buffer whose rows are tokens and whose items have the activation dtype."""
        most_experts, _ = self.router_widths()
        widths = {
            "residual": self.hidden_size,
            "normed": self.hidden_size,
            "branch": self.hidden_size,
            "router": most_experts,
        }
        if self.order == "parallel_two":
            widths["normed_mlp"] = self.hidden_size
        if self.embed_size is not None:
            widths["embedded"] = self.embed_size
        if self.layer_inputs is not None:
            widths.update(self.layer_inputs.buffers())
        if self.streams is not None:
            widths.update(self.streams.buffers(self.hidden_size))
        if self.taps:
            widths["taps"] = len(self.taps) * self.hidden_size
        if self.draft_input is not None:
            widths.update(self.draft_input.buffers(self.hidden_size))
        for index in range(len(self.blocks)):
            # Blocks may differ in width, but they run one after another, so the widest decides.
            for name, width in block_buffers(self, index).items():
                widths[name] = max(width, widths.get(name, 0))
        return widths

    def embedding(self) -> LayerSpec:
        """Return the token embedding."""
        size = self.embed_size or self.hidden_size
        return LayerSpec("model.embed_tokens", "embedding", (self.vocab_size, size))

    def head(self) -> LayerSpec:
        """Return the output head; the embedding itself if they are tied."""
        if self.tied:
            return self.embedding()
        size = self.embed_size or self.hidden_size
        return LayerSpec("lm_head", "head", (self.head_size or self.vocab_size, size), self.head_bias)

    def projections(self) -> dict[str, LayerSpec]:
        """Return the projections from embedding size to hidden size, `in`, and back, `out`, none if the sizes are equal;
        and those of `layer_inputs` and `streams`.
        """
        if self.layer_inputs is not None:
            streams = {} if self.streams is None else self.streams.projections(self.hidden_size)
            return {"layers": self.layer_inputs.projection(self.hidden_size), **streams}
        if self.embed_size is None:
            return {}
        into = LayerSpec("model.project_in", "linear", (self.hidden_size, self.embed_size))
        out = LayerSpec("model.project_out", "linear", (self.embed_size, self.hidden_size))
        return {"in": into, "out": out}

    def outer_norms(self) -> dict[str, NormTensor]:
        """Return the norms outside of blocks: `embed` after the embedding, `final` before the head."""
        found = {}
        if self.embed_norm and self.holds_embedding:
            found["embed"] = NormTensor("model.embed_norm", (self.hidden_size,), self.norm)
        if self.layer_inputs is not None:
            found["layers"] = NormTensor(NORM, (self.layer_inputs.size,), self.norm)
        if self.final_norm and self.holds_head:
            found["final"] = NormTensor("model.norm", (self.hidden_size,), self.norm)
        return found

    def tables(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return tensor name and shape of further tables: `positions` and `token_types`, which are added to embeddings;
        `logits`, added to the logits of a tied head; `tokens`, ids of a smaller head's rows; and `DraftInput.vectors`.
        """
        found: dict[str, tuple[str, tuple[int, ...]]] = {}
        if self.positions is not None and not self.positions.computed and self.holds_embedding:
            shape = self.positions.count + self.positions.offset, self.hidden_size
            found["positions"] = ("model.embed_positions.weight", shape)
        if self.token_types and self.holds_embedding:
            found["token_types"] = ("model.token_type_embeddings.weight", (self.token_types, self.hidden_size))
        if self.tied and self.head_bias and self.holds_head:
            found["logits"] = ("lm_head.bias", (self.vocab_size,))
        if self.head_size is not None and self.holds_head:
            found["tokens"] = (DRAFT_TOKENS, (self.head_size,))
        if self.draft_input is not None:
            for name, size in self.draft_input.vectors(self.hidden_size).items():
                found[name] = (name, (size,))
        return found

    def draft_linears(self) -> dict[str, LayerSpec]:
        """Return the matrices before a draft's blocks by role; see `DraftInput.linears`."""
        return {} if self.draft_input is None else self.draft_input.linears(self.hidden_size)

    def draft_norms(self) -> dict[str, NormTensor]:
        """Return the norms before a draft's blocks by role; see `DraftInput.norms`."""
        return {} if self.draft_input is None else self.draft_input.norms(self.hidden_size)

    @property
    def embeds_tokens(self) -> bool:
        """Whether this part holds the embedding's matrix: for the tokens, or as a tied head."""
        return self.holds_embedding or (self.tied and self.holds_head and self.causal_lm)

    @property
    def has_own_head(self) -> bool:
        """Whether the head is a matrix of its own."""
        return self.holds_head and self.causal_lm and not self.tied

    @property
    def stretch(self) -> float:
        """Factor by which a context may exceed `max_position`: the smallest linear scaling of all layers."""
        return self._scaling("linear")

    @property
    def growth(self) -> float:
        """Factor by which a context may exceed `max_position` if that is asked for, as all sequences then have other rotary
        angles: the smallest dynamic scaling of all layers.
        """
        return self._scaling("dynamic")

    def _scaling(self, rope_type: str) -> float:
        """Return the smallest factor of all layers that rotate, which is 1 for layers of another type."""
        ropes = [block.rope for block in self.blocks if block.rope is not None]
        factors = [rope.factor if rope.rope_type == rope_type else 1.0 for rope in ropes]
        return min(factors, default=1.0)

    @property
    def num_plain(self) -> int:
        """Count of numbers outside of matrices for a memory plan: only tables; norms and biases are too small."""
        total = 0
        for _, shape in self.tables().values():
            total += math.prod(shape)
        return total

    def fused_groups(self) -> Iterator[tuple[LayerSpec, ...]]:
        """Yield all matrices of the model except those that are cut by heads; parts of one entry may be fused."""
        if self.embeds_tokens:
            yield (self.embedding(),)
        if self.layer_inputs is not None:
            yield (self.layer_inputs.tokens(),)
        for projection in (*self.projections().values(), *self.draft_linears().values()):
            yield (projection,)
        for index in range(len(self.blocks)):
            yield from self.fused_linears(index)
        if self.has_own_head:
            yield (self.head(),)

    def halves(self) -> Iterator[LayerSpec]:
        """Yield both halves of each absorbed matrix, of shape (heads, N, K)."""
        for index in range(len(self.blocks)):
            yield from mixer_parts(self, index).halves

    def linears(self) -> Iterator[LayerSpec]:
        """Yield every matrix of the model, once."""
        if self.embeds_tokens:
            yield self.embedding()
        if self.layer_inputs is not None:
            yield self.layer_inputs.tokens()
        yield from self.projections().values()
        yield from self.draft_linears().values()
        for index in range(len(self.blocks)):
            for parts in self.fused_linears(index):
                yield from parts
            absorbed = mixer_parts(self, index).absorbed
            if absorbed is not None:
                yield absorbed
        if self.has_own_head:
            yield self.head()

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor in a checkpoint of this model, by canonical name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for part in self.linears():
            shapes[f"{part.name}.weight"] = part.shape
            if part.bias:
                shapes[f"{part.name}.bias"] = (part.shape[0],)
        for index in range(len(self.blocks)):
            for norm in self.block_norms(index).values():
                shapes.update(norm.tensors())
            shapes.update(mixer_parts(self, index).params.values())
            shapes.update(self.activation_tensors(index))
            shapes.update(self.stream_tensors(index).values())
            scalar = self.layer_scalar(index)
            if scalar is not None:
                shapes[scalar] = (1,)
            for vector in (self.correction(index), self.expert_factors(index)):
                if vector is not None:
                    name, count = vector
                    shapes[name] = (count,)
        for norm in (*self.outer_norms().values(), *self.draft_norms().values()):
            shapes.update(norm.tensors())
        shapes.update(self.tables().values())
        if self.pooling_head is not None:
            shapes.update(self.pooling_head.tensors())
        return shapes
