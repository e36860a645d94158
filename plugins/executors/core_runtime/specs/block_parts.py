"""The parts of one block of a decoder: matrices, norms and buffers, by their roles. Torch-free.

Owns: their names in a checkpoint and their shapes, except those of mixers (`mixer_parts` has them by kind). Never does: hold
weights. Called by: `DecoderSpec`, and the weight loading.
"""

from __future__ import annotations

import msgspec

from core.api.specs import LatentSpec, LayerSpec, MixerSpec, StateSpec
from core_runtime.specs.block_spec import ExpertsSpec, MLPSpec
from core_runtime.specs.decoder_shape import DecoderShape
from core_runtime.specs.mixer_parts import MixerParts, NormTensor, attention_parts, latent_parts, merged, state_parts


class ExpertLinears(msgspec.Struct, frozen=True):
    """The matrices of one expert: gate and up concatenated (or up alone), and down."""

    gate_up: tuple[LayerSpec, ...]
    down: tuple[LayerSpec, ...]


def mixer_parts(spec: DecoderShape, index: int) -> MixerParts:
    """Return the parts of a block's mixers; of both if there are two."""
    parts = [_mixer_parts(spec, index, mixer) for mixer in spec.blocks[index].mixers]
    return merged(parts)


def _mixer_parts(spec: DecoderShape, index: int, mixer: MixerSpec) -> MixerParts:
    block = spec.blocks[index]
    hidden = spec.hidden_size
    width = 2 * hidden if block.wide or block.aside else hidden
    layer = spec.block_name(index)
    if isinstance(mixer, StateSpec):
        return state_parts(mixer, f"{layer}.mixer", hidden)
    prefix = f"{layer}.self_attn"
    heads = spec.block_heads(index)
    pairs = block.rotary_size if block.rope is not None and block.rope.interleaved else 0
    if isinstance(mixer, LatentSpec):
        return latent_parts(mixer, prefix, hidden, heads, interleaved=pairs > 0, width=width)
    return attention_parts(mixer, prefix, hidden, heads, pairs, spec.norm, width)


def mlp_linears(spec: DecoderShape, index: int) -> dict[str, tuple[LayerSpec, ...]]:
    """Return the matrices of a block's MLP, or its router and shared expert; parts of one entry share their input."""
    mlp = spec.block_mlp(index)
    if mlp is not None:
        return _dense_linears(f"{spec.block_name(index)}.mlp", spec.hidden_size, mlp)
    experts = spec.blocks[index].experts
    if experts is None:
        return {}
    module = _experts_module(spec, index, experts)
    shape = (experts.choices, spec.hidden_size)
    router = LayerSpec(f"{module}.gate", "linear", shape, experts.router_bias)
    found: dict[str, tuple[LayerSpec, ...]] = {"router": (router,)}
    shared = spec.shared_mlp(index)
    if shared is not None:
        linears = _dense_linears(f"{module}.shared_experts", spec.hidden_size, shared)
        found |= {f"shared_{role}": parts for role, parts in linears.items()}
    if experts.shared_gate:
        gate = LayerSpec(f"{module}.shared_expert_gate", "linear", (1, spec.hidden_size))
        found["shared_gate"] = (gate,)
    return found


def layer_linears(spec: DecoderShape, index: int) -> dict[str, tuple[LayerSpec, ...]]:
    """Return the matrices of a block's gated norms, its own part of the embeddings for each layer, those for several streams,
    and the one of a result that is put aside.
    """
    block, layer, hidden = spec.blocks[index], spec.block_name(index), spec.hidden_size
    found: dict[str, tuple[LayerSpec, ...]] = {}
    for role in block.gated_norms:
        module = f"{layer}.{_norm_names(spec, index)[role]}"
        found[f"layer_{role}_in"] = (LayerSpec(f"{module}.gate_in", "linear", (block.gate_rank, hidden)),)
        found[f"layer_{role}_out"] = (LayerSpec(f"{module}.gate_out", "linear", (hidden, block.gate_rank)),)
    if block.aside:
        found["layer_aside"] = (LayerSpec(f"{layer}.aside_proj", "linear", (hidden, hidden)),)
    for part in (spec.layer_inputs, spec.streams):
        if part is not None:
            found |= part.linears(layer, hidden)
    return found


def _dense_linears(module: str, hidden: int, mlp: MLPSpec) -> dict[str, tuple[LayerSpec, ...]]:
    """Return the matrices of an MLP in the module of that name."""
    size = mlp.size
    down = LayerSpec(f"{module}.down_proj", "linear", (hidden, size), mlp.down_bias, summed=True)
    gate = LayerSpec(f"{module}.gate_proj", "linear", (size, hidden), mlp.bias)
    up = LayerSpec(f"{module}.up_proj", "linear", (size, hidden), mlp.bias)
    inputs: tuple[LayerSpec, ...] = (gate, up)
    if not mlp.gated:
        inputs = (up,)
    elif mlp.fused:
        both = LayerSpec(f"{module}.gate_up_proj", "linear", (2 * size, hidden), mlp.bias, sections=(size, size))
        inputs = (both,)
    found: dict[str, tuple[LayerSpec, ...]] = {"gate_up": inputs, "down": (down,)}
    if mlp.low_rank:
        rows = sum(part.shape[0] for part in inputs)
        found["mlp_low"] = (LayerSpec(f"{module}.low_rank.0", "linear", (mlp.low_rank, hidden)),)
        found["mlp_low_out"] = (LayerSpec(f"{module}.low_rank.1", "linear", (rows, mlp.low_rank)),)
    return found


def expert_linears(spec: DecoderShape, index: int) -> list[ExpertLinears]:
    """Return the experts of a block that this part holds, in the order of their ids; empty without experts."""
    experts = spec.blocks[index].experts
    if experts is None:
        return []
    module = _experts_module(spec, index, experts)
    _, gate, up, down = experts.names
    inputs_shape = (experts.intermediate_size, spec.hidden_size)
    outputs_shape = (spec.hidden_size, experts.intermediate_size)
    found = []
    for expert_id in experts.held_ids:
        expert = f"{module}.experts.{expert_id}"
        first = LayerSpec(f"{expert}.{gate}", "experts", inputs_shape, experts.bias)
        second = LayerSpec(f"{expert}.{up}", "experts", inputs_shape, experts.bias)
        last = LayerSpec(f"{expert}.{down}", "experts", outputs_shape, experts.bias, summed=True)
        inputs = (first, second) if experts.gated else (second,)
        found.append(ExpertLinears(inputs, (last,)))
    return found


def correction_tensor(spec: DecoderShape, index: int) -> tuple[str, int] | None:
    """Return tensor name and size of a router bias that affects the choice only, or None."""
    experts = spec.blocks[index].experts
    if experts is None or not experts.correction:
        return None
    return f"{_experts_module(spec, index, experts)}.gate.e_score_correction_bias", experts.choices


def _experts_module(spec: DecoderShape, index: int, experts: ExpertsSpec) -> str:
    """Return the module name of router and experts."""
    module, *_ = experts.names
    return f"{spec.block_name(index)}.{module}"


def norms_around(spec: DecoderShape, index: int) -> dict[str, NormTensor]:
    """Return the norms of a block around mixer and MLP, and within the MLP."""
    prefix = spec.block_name(index)
    norms: dict[str, NormTensor] = {}
    behind = spec.blocks[index].behind_offsets
    offsets = {} if behind is None else {"post_attention": behind[0], "post_mlp": behind[1]}
    for role, name in _norm_names(spec, index).items():
        how = msgspec.structs.replace(spec.norm, offset=offsets.get(role, spec.norm.offset))
        width = 2 * spec.hidden_size if role == "input" and spec.blocks[index].aside else spec.hidden_size
        norms[role] = NormTensor(f"{prefix}.{name}", (width,), how)
    norms |= _norms_of_experts(spec, index)
    mlp = spec.block_mlp(index)
    if mlp is not None and mlp.inner_norm is not None:
        norms["mlp_inner"] = NormTensor(f"{prefix}.mlp.inner_norm", (mlp.size,), mlp.inner_norm)
    return norms


def _norms_of_experts(spec: DecoderShape, index: int) -> dict[str, NormTensor]:
    """Return the norms of experts beside an MLP, and of its output; what the router reads is divided by the root of its
    size.
    """
    experts = spec.blocks[index].experts
    if experts is None or not experts.beside:
        return {}
    module = _experts_module(spec, index, experts)
    shape = (spec.hidden_size,)
    of_router = msgspec.structs.replace(spec.norm, scale=spec.hidden_size**-0.5)
    return {
        "router": NormTensor(f"{module}.router_norm", shape, of_router),
        "before_experts": NormTensor(f"{module}.experts_norm", shape, spec.norm),
        "behind_experts": NormTensor(f"{module}.experts_out_norm", shape, spec.norm),
        "behind_shared": NormTensor(f"{module}.shared_out_norm", shape, spec.norm),
    }


def expert_factors(spec: DecoderShape, index: int) -> tuple[str, int] | None:
    """Return tensor name and size of the factors of chosen experts' weights, or None."""
    experts = spec.blocks[index].experts
    if experts is None or not experts.beside:
        return None
    return f"{_experts_module(spec, index, experts)}.gate.per_expert_scale", experts.count


def _norm_names(spec: DecoderShape, index: int) -> dict[str, str]:
    """Return the names of norms in the block, by role."""
    block = spec.blocks[index]
    mixes = bool(block.mixers)
    order = block.order or spec.order
    names: dict[str, str] = {}
    if mixes and block.input_norm and order not in ("post", "residual_post"):
        names["input"] = "input_layernorm"
    if mixes and order in ("sandwich", "post", "residual_post"):
        names["post_attention"] = "post_attention_layernorm"
    if block.has_mlp:
        names |= _mlp_norm_names(order, mixes=mixes, behind=block.norm_behind_mlp)
    if spec.layer_inputs is not None:
        names["post_layer"] = "post_per_layer_input_norm"
    if spec.streams is not None:
        names |= spec.streams.norms()
    return names


def _mlp_norm_names(order: str, *, mixes: bool, behind: bool) -> dict[str, str]:
    """Return the names of norms around a block's MLP, by role.

    mixes: whether a mixer comes before it. behind: whether a norm follows it in any order.
    """
    names: dict[str, str] = {}
    if order in ("pre", "parallel_two"):
        names["pre_mlp"] = "post_attention_layernorm" if mixes else "input_layernorm"
    if order == "sandwich":
        names["pre_mlp"] = "pre_feedforward_layernorm"
    if behind or order in ("sandwich", "post", "residual_post"):
        names["post_mlp"] = "post_feedforward_layernorm"
    return names


def block_buffers(spec: DecoderShape, index: int) -> dict[str, int]:
    """Return the width of each step buffer that a block uses."""
    widths = dict(mixer_parts(spec, index).buffers)
    block = spec.blocks[index]
    if len(block.mixers) > 1:
        widths["beside"] = spec.hidden_size
    mlps = (spec.block_mlp(index), spec.shared_mlp(index))
    sizes = [mlp.size for mlp in mlps if mlp is not None]
    inner = max(sizes, default=0)
    widths["gate_up"] = 2 * inner
    widths["mlp"] = inner
    if block.experts is not None and block.experts.shared_gate:
        widths["shared_gate"] = 1
        widths["shared_out"] = spec.hidden_size
    if block.experts is not None and (block.experts.late or block.experts.beside):
        widths["late"] = spec.hidden_size
    if block.aside:
        widths |= {"pair": 2 * spec.hidden_size, "entry": spec.hidden_size, "aside": spec.hidden_size}
    widths["mlp_low_rank"] = max((mlp.low_rank for mlp in mlps if mlp is not None), default=0)
    for name in block.keeps_as:
        widths[kept_buffer(name)] = spec.hidden_size
    return widths


def kept_buffer(name: str) -> str:
    """Return the name of the step buffer of a residual stream that a block keeps; see `BlockSpec.keeps_as`."""
    return f"kept_{name}"
