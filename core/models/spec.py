"""The shape of a decoder, resolved from a configuration and its family row. Torch-free.

Owns: `DecoderSpec` and its parts, and what follows from them without weights (tensor shapes, layer specs).
Never does: read configurations (`core.models.families` does) or hold weights.
Called by: the decoder, the weight loading, the memory plan, the dummy loader.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from core.api.specs import AttentionSpec, LayerSpec, RopeSpec, RoutingSpec, StateSpec


class ExpertsSpec(msgspec.Struct, frozen=True):
    """The experts of a block. names: of their module in the block, and of an expert's gate, up and down."""

    count: int
    intermediate_size: int
    routing: RoutingSpec
    names: tuple[str, str, str, str]


class BlockSpec(msgspec.Struct, frozen=True):
    """One decoder layer. mixer: how a token sees those before it; rope: None for layers with a state; experts: in place
    of its MLP, or None."""

    mixer: AttentionSpec | StateSpec
    rope: RopeSpec | None = None
    experts: ExpertsSpec | None = None

    @property
    def rotary_size(self) -> int:
        """Numbers of a head that rotate with the position."""
        return 0 if isinstance(self.mixer, StateSpec) else self.mixer.head_size


class DecoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One decoder. norm_offset is added to norm weights; sandwich_norms puts a norm behind attention and MLP too.

    embed_scale multiplies embeddings; logit_cap is the soft cap of the final logits, or None.
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

    def block_linears(self, index: int) -> dict[str, tuple[LayerSpec, ...]]:
        """The linear layers of one block by role in it; parts of one entry share their input and may be fused."""
        return {**mixer_parts(self, index).linears, **self._mlp_linears(index)}

    def _mlp_linears(self, index: int) -> dict[str, tuple[LayerSpec, ...]]:
        h, experts = self.hidden_size, self.blocks[index].experts
        if experts is None:
            i, mlp = self.intermediate_size, f"model.layers.{index}.mlp"
            return {
                "gate_up": (
                    LayerSpec(f"{mlp}.gate_proj", "linear", (i, h), self.mlp_bias),
                    LayerSpec(f"{mlp}.up_proj", "linear", (i, h), self.mlp_bias),
                ),
                "down": (LayerSpec(f"{mlp}.down_proj", "linear", (h, i), self.mlp_bias),),
            }
        module, gate, up, down = experts.names
        prefix, i = f"model.layers.{index}.{module}", experts.intermediate_size
        found: dict[str, tuple[LayerSpec, ...]] = {
            "router": (LayerSpec(f"{prefix}.gate", "linear", (experts.count, h)),)
        }
        for e in range(experts.count):
            expert = f"{prefix}.experts.{e}"
            found[f"gate_up.{e}"] = (
                LayerSpec(f"{expert}.{gate}", "experts", (i, h)),
                LayerSpec(f"{expert}.{up}", "experts", (i, h)),
            )
            found[f"down.{e}"] = (LayerSpec(f"{expert}.{down}", "experts", (h, i)),)
        return found

    def router_widths(self) -> tuple[int, int]:
        """Most experts and most choices of a token in any block; 0 without experts."""
        experts = [block.experts for block in self.blocks if block.experts is not None]
        return max((e.count for e in experts), default=0), max((e.routing.top_k for e in experts), default=0)

    def block_norms(self, index: int) -> dict[str, tuple[str, int]]:
        """Norm weights of one block: role → (tensor name, size)."""
        prefix, h = f"model.layers.{index}", self.hidden_size
        norms = {"input": (f"{prefix}.input_layernorm.weight", h)}
        if self.sandwich_norms:
            norms["post_attention"] = (f"{prefix}.post_attention_layernorm.weight", h)
            norms["pre_mlp"] = (f"{prefix}.pre_feedforward_layernorm.weight", h)
            norms["post_mlp"] = (f"{prefix}.post_feedforward_layernorm.weight", h)
        else:
            norms["pre_mlp"] = (f"{prefix}.post_attention_layernorm.weight", h)
        return {**norms, **mixer_parts(self, index).norms}

    def block_params(self, index: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Other tensors of one block's mixer: role → (tensor name, shape)."""
        return mixer_parts(self, index).params

    def buffers(self) -> dict[str, int]:
        """Width of each buffer of a step whose rows are tokens and whose items have the activation dtype."""
        widths = {
            **dict.fromkeys(("residual", "normed", "branch"), self.hidden_size),
            "gate_up": 2 * self.intermediate_size,
            "mlp": self.intermediate_size,
            "router": self.router_widths()[0],
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

    def linears(self) -> Iterator[LayerSpec]:
        """Every matrix of the model, once."""
        yield self.embedding()
        for index in range(len(self.blocks)):
            for parts in self.block_linears(index).values():
                yield from parts
        if not self.tied:
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
            shapes.update(self.block_params(index).values())
        shapes["model.norm.weight"] = (self.hidden_size,)
        return shapes


class MixerParts(msgspec.Struct, frozen=True):
    """What a mixer is made of, by role. buffers: widths, see `DecoderSpec.buffers`; params: `DecoderSpec.block_params`."""

    linears: dict[str, tuple[LayerSpec, ...]]
    norms: dict[str, tuple[str, int]]
    buffers: dict[str, int]
    params: dict[str, tuple[str, tuple[int, ...]]] = {}


def mixer_parts(spec: DecoderSpec, index: int) -> MixerParts:
    """Of one block."""
    mixer = spec.blocks[index].mixer
    return state_parts(spec, index, mixer) if isinstance(mixer, StateSpec) else attention_parts(spec, index, mixer)


def attention_parts(spec: DecoderSpec, index: int, a: AttentionSpec) -> MixerParts:
    """q, k and v side by side, and what the heads give."""
    attn, h = f"model.layers.{index}.self_attn", spec.hidden_size
    q, k, v = a.num_heads * a.head_size, a.num_kv_heads * a.head_size, a.num_kv_heads * a.head_size_v
    linears = {
        "qkv": (
            LayerSpec(f"{attn}.q_proj", "linear", (q, h), spec.qkv_bias),
            LayerSpec(f"{attn}.k_proj", "linear", (k, h), spec.qkv_bias),
            LayerSpec(f"{attn}.v_proj", "linear", (v, h), spec.qkv_bias),
        ),
        "o": (LayerSpec(f"{attn}.o_proj", "linear", (h, a.num_heads * a.head_size_v), spec.out_bias),),
    }
    norms = {role: (f"{attn}.{role}_norm.weight", a.head_size) for role in ("q", "k") if spec.qk_norm}
    return MixerParts(linears, norms, {"qkv": q + k + v, "attention": a.num_heads * a.head_size_v})


def state_parts(spec: DecoderSpec, index: int, state: StateSpec) -> MixerParts:
    """The inputs side by side, what the op gives, and the op's own tensors."""
    prefix, h = f"model.layers.{index}.mixer", spec.hidden_size
    inputs = (LayerSpec(f"{prefix}.{name}", "linear", (n, h), state.bias) for name, n in state.inputs.items())
    out = LayerSpec(f"{prefix}.out_proj", "linear", (h, state.output_size), state.bias)
    buffers = {f"state_in.{state.input_size}": state.input_size, f"state_out.{state.output_size}": state.output_size}
    params = {name: (f"{prefix}.{name}", shape) for name, shape in state.params.items()}
    return MixerParts({"in": tuple(inputs), "out": (out,)}, {}, buffers, params)
