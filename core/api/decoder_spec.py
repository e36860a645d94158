"""The shape of a decoder, resolved from a configuration and its family row. Torch-free.

Owns: `DecoderSpec` and its parts, and what follows from them without weights (tensor shapes, layer specs).
Never does: read configurations (`core.models.families` does) or hold weights.
Called by: the decoder, the weight loading, the memory plan, the dummy loader.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from core.api.errors import UserError
from core.api.mixer_parts import MixerParts, attention_parts, latent_parts, state_parts
from core.api.model_part import Part, local_mixer, share_of
from core.api.specs import LatentSpec, LayerSpec, MixerSpec, RopeSpec, RoutingSpec, StateSpec


class ExpertsSpec(msgspec.Struct, frozen=True):
    """The experts of a block.

    count: experts that the router chooses from.
    names: of their module in the block, and of an expert's gate, up and down.
    shared_intermediate_size: of an expert that every token takes, 0 for none.
    correction: the router has a bias for each expert that counts in the choice alone
        (`gate.e_score_correction_bias`, DeepSeek-V3, arXiv 2412.19437).
    held: ids of the experts that this part of the model holds, from the first to before the second; None: all.
    """

    count: int
    intermediate_size: int
    routing: RoutingSpec
    names: tuple[str, str, str, str]
    shared_intermediate_size: int = 0
    correction: bool = False
    held: tuple[int, int] | None = None

    @property
    def held_ids(self) -> range:
        """Ids of the experts that are held."""
        if self.held is None:
            return range(self.count)
        start, stop = self.held
        return range(start, stop)


class ExpertLinears(msgspec.Struct, frozen=True):
    """The matrices of one expert: gate and up side by side, and down."""

    gate_up: tuple[LayerSpec, ...]
    down: tuple[LayerSpec, ...]


class BlockSpec(msgspec.Struct, frozen=True):
    """One decoder layer.

    mixer: how a token sees those before it.
    rope: None for layers with a state.
    experts: in place of its MLP, or None.
    """

    mixer: MixerSpec
    rope: RopeSpec | None = None
    experts: ExpertsSpec | None = None

    @property
    def rotary_size(self) -> int:
        """Numbers of a head that rotate with the position."""
        if isinstance(self.mixer, StateSpec):
            return 0
        if isinstance(self.mixer, LatentSpec):
            return self.mixer.rope_size
        return self.mixer.head_size


class DecoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One decoder, or the part of one that a rank holds (see `local`).

    norm_offset: is added to norm weights.
    sandwich_norms: there is a norm behind attention and MLP, too.
    embed_scale: multiplies embeddings.
    logit_cap: the soft cap of the final logits, or None.
    vocab_start: the first token of the `vocab_size` ones whose rows of embedding and head are held.
    first_block: the number of `blocks[0]` in the whole model.
    holds_embedding: whether this part begins with the embedding.
    holds_head: whether this part ends with the head.
    """

    family: str
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    blocks: tuple[BlockSpec, ...]
    eps: float
    activation: str
    max_position: int
    tied: bool
    norm_offset: float = 0.0
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    sandwich_norms: bool = False
    embed_scale: float = 1.0
    logit_cap: float | None = None
    vocab_start: int = 0
    first_block: int = 0
    holds_embedding: bool = True
    holds_head: bool = True

    def local(self, part: Part) -> DecoderSpec:
        """The smaller model that a rank holds: its heads, inner sizes, experts, vocabulary and blocks.

        Raises UserError where something does not divide.
        """
        return _local(self, part)

    def block_name(self, index: int) -> str:
        """The module of block `index` of this part, in canonical names."""
        return f"model.layers.{self.first_block + index}"

    def block_linears(self, index: int) -> dict[str, tuple[LayerSpec, ...]]:
        """The linear layers of one block by role in it, but for its experts.

        Parts of one entry share their input and may be fused.
        """
        return {**mixer_parts(self, index).linears, **self._mlp_linears(index)}

    def _mlp_linears(self, index: int) -> dict[str, tuple[LayerSpec, ...]]:
        """The matrices of the MLP, or the router and the shared expert."""
        experts = self.blocks[index].experts
        if experts is None:
            return self._gated_linears(f"{self.block_name(index)}.mlp", self.intermediate_size)
        prefix = f"{self.block_name(index)}.{experts.names[0]}"
        router = LayerSpec(f"{prefix}.gate", "linear", (experts.count, self.hidden_size))
        found: dict[str, tuple[LayerSpec, ...]] = {"router": (router,)}
        if experts.shared_intermediate_size:
            shared = self._gated_linears(f"{prefix}.shared_experts", experts.shared_intermediate_size)
            for role, parts in shared.items():
                found[f"shared_{role}"] = parts
        return found

    def expert_linears(self, index: int) -> list[ExpertLinears]:
        """The experts of one block that are held, in the order of their ids; none without experts."""
        experts = self.blocks[index].experts
        if experts is None:
            return []
        module, gate, up, down = experts.names
        h = self.hidden_size
        inner = experts.intermediate_size
        found = []
        for e in experts.held_ids:
            expert = f"{self.block_name(index)}.{module}.experts.{e}"
            first = LayerSpec(f"{expert}.{gate}", "experts", (inner, h))
            second = LayerSpec(f"{expert}.{up}", "experts", (inner, h))
            last = LayerSpec(f"{expert}.{down}", "experts", (h, inner), summed=True)
            found.append(ExpertLinears((first, second), (last,)))
        return found

    def fused_linears(self, index: int) -> list[tuple[LayerSpec, ...]]:
        """All matrices of one block; parts of one entry share their input and may be fused."""
        found = list(self.block_linears(index).values())
        for expert in self.expert_linears(index):
            found += (expert.gate_up, expert.down)
        return found

    def _gated_linears(self, mlp: str, size: int) -> dict[str, tuple[LayerSpec, ...]]:
        """The matrices of an MLP of `size` inner numbers, in the module `mlp`."""
        h = self.hidden_size
        gate = LayerSpec(f"{mlp}.gate_proj", "linear", (size, h), self.mlp_bias)
        up = LayerSpec(f"{mlp}.up_proj", "linear", (size, h), self.mlp_bias)
        down = LayerSpec(f"{mlp}.down_proj", "linear", (h, size), self.mlp_bias, summed=True)
        return {"gate_up": (gate, up), "down": (down,)}

    def router_widths(self) -> tuple[int, int]:
        """Most experts and most choices of a token in any block; 0 without experts."""
        experts = [block.experts for block in self.blocks if block.experts is not None]
        most_experts = max((one.count for one in experts), default=0)
        most_choices = max((one.routing.top_k for one in experts), default=0)
        return most_experts, most_choices

    def block_norms(self, index: int) -> dict[str, tuple[str, int]]:
        """Norm weights of one block: role → (tensor name, size)."""
        prefix = self.block_name(index)
        h = self.hidden_size
        norms = {"input": (f"{prefix}.input_layernorm.weight", h)}
        if self.sandwich_norms:
            norms["post_attention"] = (f"{prefix}.post_attention_layernorm.weight", h)
            norms["pre_mlp"] = (f"{prefix}.pre_feedforward_layernorm.weight", h)
            norms["post_mlp"] = (f"{prefix}.post_feedforward_layernorm.weight", h)
        else:
            norms["pre_mlp"] = (f"{prefix}.post_attention_layernorm.weight", h)
        return {**norms, **mixer_parts(self, index).norms}

    def correction(self, index: int) -> tuple[str, int] | None:
        """Tensor name and size of a router's bias that counts in the choice alone, or None."""
        experts = self.blocks[index].experts
        if experts is None or not experts.correction:
            return None
        router = f"{self.block_name(index)}.{experts.names[0]}.gate"
        return f"{router}.e_score_correction_bias", experts.count

    def shared_intermediate_size(self) -> int:
        """Most inner numbers of a shared expert in any block; 0 without shared experts."""
        experts = [block.experts for block in self.blocks if block.experts is not None]
        return max((one.shared_intermediate_size for one in experts), default=0)

    def buffers(self) -> dict[str, int]:
        """Width of each buffer of a step whose rows are tokens and whose items have the activation dtype."""
        inner = max(self.intermediate_size, self.shared_intermediate_size())
        most_experts, _ = self.router_widths()
        widths = {
            "residual": self.hidden_size,
            "normed": self.hidden_size,
            "branch": self.hidden_size,
            "gate_up": 2 * inner,
            "mlp": inner,
            "router": most_experts,
        }
        for index in range(len(self.blocks)):
            for name, width in mixer_parts(self, index).buffers.items():
                widths[name] = max(width, widths.get(name, 0))
        return widths

    def embedding(self) -> LayerSpec:
        """The token embedding."""
        return LayerSpec("model.embed_tokens", "embedding", (self.vocab_size, self.hidden_size))

    def head(self) -> LayerSpec:
        """The output head; the embedding itself when they are tied."""
        if self.tied:
            return self.embedding()
        return LayerSpec("lm_head", "head", (self.vocab_size, self.hidden_size))

    @property
    def embeds_tokens(self) -> bool:
        """Whether the embedding's matrix is held: for the tokens, or as a tied head."""
        return self.holds_embedding or (self.tied and self.holds_head)

    @property
    def mixers(self) -> tuple[MixerSpec, ...]:
        """Everything that has a part of the cache, in order."""
        return tuple(block.mixer for block in self.blocks)

    @property
    def stretch(self) -> float:
        """How many times longer than `max_position` a context may be: the least linear scaling of all layers."""
        ropes = [block.rope for block in self.blocks if block.rope is not None]
        factors = [rope.factor if rope.rope_type == "linear" else 1.0 for rope in ropes]
        return min(factors, default=1.0)

    @property
    def num_plain(self) -> int:
        """Numbers outside of matrices that a memory plan counts: norms and biases are too few."""
        return 0

    def fused_groups(self) -> Iterator[tuple[LayerSpec, ...]]:
        """All matrices of the model but for those that are cut by heads; parts of one entry may be fused."""
        yield (self.embedding(),)
        for index in range(len(self.blocks)):
            yield from self.fused_linears(index)
        if not self.tied:
            yield (self.head(),)

    def halves(self) -> Iterator[LayerSpec]:
        """Both halves of each absorbed matrix, of shape (heads, N, K)."""
        for index in range(len(self.blocks)):
            yield from mixer_parts(self, index).halves

    def linears(self) -> Iterator[LayerSpec]:
        """Every matrix of the model, once."""
        if self.embeds_tokens:
            yield self.embedding()
        for index in range(len(self.blocks)):
            for parts in self.fused_linears(index):
                yield from parts
            absorbed = mixer_parts(self, index).absorbed
            if absorbed is not None:
                yield absorbed
        if self.holds_head and not self.tied:
            yield self.head()

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of a checkpoint of this model, by canonical name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for part in self.linears():
            shapes[f"{part.name}.weight"] = part.shape
            if part.bias:
                shapes[f"{part.name}.bias"] = (part.shape[0],)
        for index in range(len(self.blocks)):
            for name, size in self.block_norms(index).values():
                shapes[name] = (size,)
            shapes.update(mixer_parts(self, index).params.values())
            correction = self.correction(index)
            if correction is not None:
                name, count = correction
                shapes[name] = (count,)
        if self.holds_head:
            shapes["model.norm.weight"] = (self.hidden_size,)
        return shapes


def mixer_parts(spec: DecoderSpec, index: int) -> MixerParts:
    """What the mixer of one block is made of."""
    block = spec.blocks[index]
    mixer = block.mixer
    hidden = spec.hidden_size
    layer = spec.block_name(index)
    if isinstance(mixer, StateSpec):
        return state_parts(mixer, f"{layer}.mixer", hidden)
    prefix = f"{layer}.self_attn"
    if isinstance(mixer, LatentSpec):
        interleaved = block.rope is not None and block.rope.interleaved
        return latent_parts(mixer, prefix, hidden, bias=spec.out_bias, interleaved=interleaved)
    return attention_parts(mixer, prefix, hidden, (spec.qkv_bias, spec.out_bias), qk_norm=spec.qk_norm)


def _local(spec: DecoderSpec, part: Part) -> DecoderSpec:
    """The model that a rank sees. Raises UserError where it cannot be divided so."""
    if not 0 <= part.rank < part.size:
        raise UserError(f"rank {part.rank} of {part.size} parts: expected 0 to {part.size - 1}")
    if part.blocks is not None:
        start, stop = part.blocks
        spec = _stage(spec, start, stop)
    return spec if part.size == 1 else _divided(spec, part)


def _stage(spec: DecoderSpec, start: int, stop: int) -> DecoderSpec:
    """Some blocks; the embedding goes with the first one of all, the head with the last."""
    count = len(spec.blocks)
    if not 0 <= start < stop <= count:
        raise UserError(f"blocks {start} to {stop}: expected a range within the model's {count} blocks")
    return msgspec.structs.replace(
        spec,
        blocks=spec.blocks[start:stop],
        first_block=spec.first_block + start,
        holds_embedding=spec.holds_embedding and start == 0,
        holds_head=spec.holds_head and stop == count,
    )


def _divided(spec: DecoderSpec, part: Part) -> DecoderSpec:
    """The rank's part of each layer."""
    blocks = []
    for block in spec.blocks:
        mixer = local_mixer(block.mixer, part.size)
        experts = None if block.experts is None else _experts(block.experts, part)
        blocks.append(msgspec.structs.replace(block, mixer=mixer, experts=experts))
    inner = spec.intermediate_size
    if any(block.experts is None for block in spec.blocks):
        inner = share_of(inner, part.size, "inner numbers of an MLP (intermediate_size)")
    vocab_size = share_of(spec.vocab_size, part.size, "tokens of the vocabulary (vocab_size)")
    return msgspec.structs.replace(
        spec,
        blocks=tuple(blocks),
        intermediate_size=inner,
        vocab_size=vocab_size,
        vocab_start=part.rank * vocab_size,
    )


def _experts(experts: ExpertsSpec, part: Part) -> ExpertsSpec:
    """A range of ids, and the rank's part of the shared expert."""
    count = share_of(experts.count, part.size, "experts")
    shared = share_of(experts.shared_intermediate_size, part.size, "inner numbers of the shared expert")
    first = part.rank * count
    return msgspec.structs.replace(experts, held=(first, first + count), shared_intermediate_size=shared)
