"""What each kind of mixer is made of: matrices, norms and buffers. Torch-free.

Owns: their names in a checkpoint, their shapes and roles. Never does: hold weights. Called by: `DecoderSpec`, and
through it by the weight loading and the memory plan.
"""

from __future__ import annotations

import msgspec

from core.api.specs import AttentionSpec, LatentSpec, LayerSpec, StateSpec


class MixerParts(msgspec.Struct, frozen=True):
    """What one mixer is made of, by role.

    linears: the parts of one entry share their input and may be fused.
    norms: tensor name and size.
    buffers: width of each buffer of a step.
    absorbed: a matrix that the core holds plain, cut into heads, whatever the checkpoint's format, or None.
    halves: what the absorbed matrix is cut into, each (heads, N, K).
    interleaved: linear parts whose output has rotary pairs (2i, 2i + 1), by name: rows of a head, and how many of its
        last ones rotate.
    params: other tensors of the mixer, name and shape.
    """

    linears: dict[str, tuple[LayerSpec, ...]]
    norms: dict[str, tuple[str, int]]
    buffers: dict[str, int]
    absorbed: LayerSpec | None = None
    halves: tuple[LayerSpec, ...] = ()
    interleaved: dict[str, tuple[int, int]] = {}
    params: dict[str, tuple[str, tuple[int, ...]]] = {}


def attention_parts(
    a: AttentionSpec, prefix: str, hidden: int, biases: tuple[bool, bool], *, qk_norm: bool
) -> MixerParts:
    """The parts of attention: q, k and v side by side, and the output of the heads.

    biases: whether q, k and v have one, and whether the output has one.
    """
    input_bias, output_bias = biases
    q = a.num_heads * a.head_size
    k = a.num_kv_heads * a.head_size
    v = a.num_kv_heads * a.head_size_v
    values = a.num_heads * a.head_size_v
    inputs = (
        LayerSpec(f"{prefix}.q_proj", "linear", (q, hidden), input_bias),
        LayerSpec(f"{prefix}.k_proj", "linear", (k, hidden), input_bias),
        LayerSpec(f"{prefix}.v_proj", "linear", (v, hidden), input_bias),
    )
    output = LayerSpec(f"{prefix}.o_proj", "linear", (hidden, values), output_bias, summed=True)
    norms: dict[str, tuple[str, int]] = {}
    if qk_norm:
        norms["q"] = (f"{prefix}.q_norm.weight", a.head_size)
        norms["k"] = (f"{prefix}.k_norm.weight", a.head_size)
    buffers = {"qkv": q + k + v, "attention": values}
    return MixerParts({"qkv": inputs, "o": (output,)}, norms, buffers)


def latent_parts(a: LatentSpec, prefix: str, hidden: int, *, bias: bool, interleaved: bool) -> MixerParts:
    """The projections to the latents of queries (or queries themselves) and keys side by side, and what follows.

    bias: whether the projections of the hidden state and the output have one; queries without a latent never do.
    """
    head = a.head_size_nope + a.rope_size
    q = a.num_heads * head
    kv = a.rank + a.rope_size
    latents = a.num_heads * a.rank
    values = a.num_heads * a.head_size_v

    if a.q_rank is None:
        queries = LayerSpec(f"{prefix}.q_proj", "linear", (q, hidden))
    else:
        queries = LayerSpec(f"{prefix}.q_a_proj", "linear", (a.q_rank, hidden), bias)
    keys = LayerSpec(f"{prefix}.kv_a_proj_with_mqa", "linear", (kv, hidden), bias)
    output = LayerSpec(f"{prefix}.o_proj", "linear", (hidden, values), bias, summed=True)
    linears: dict[str, tuple[LayerSpec, ...]] = {"a": (queries, keys), "o": (output,)}
    norms = {"kv_a": (f"{prefix}.kv_a_layernorm.weight", a.rank)}
    buffers = {
        "latent_a": queries.shape[0] + kv,
        "latent_q": latents,
        "latent_out": latents,
        "attention": values,
    }
    if a.q_rank is not None:
        queries = LayerSpec(f"{prefix}.q_b_proj", "linear", (q, a.q_rank))
        linears["q_b"] = (queries,)
        norms["q_a"] = (f"{prefix}.q_a_layernorm.weight", a.q_rank)
        buffers["latent_q_b"] = q

    both = a.num_heads * (a.head_size_nope + a.head_size_v)
    up = LayerSpec(f"{prefix}.kv_b_proj", "linear", (both, a.rank))
    to_latent = LayerSpec(up.name, "linear", (a.num_heads, a.rank, a.head_size_nope))
    from_latent = LayerSpec(up.name, "linear", (a.num_heads, a.head_size_v, a.rank))
    pairs: dict[str, tuple[int, int]] = {}
    if interleaved:
        pairs[queries.name] = (head, a.rope_size)
        pairs[keys.name] = (kv, a.rope_size)
    return MixerParts(linears, norms, buffers, up, (to_latent, from_latent), pairs)


def state_parts(state: StateSpec, prefix: str, hidden: int) -> MixerParts:
    """The inputs side by side, the op's output, and the op's own tensors."""
    inputs = []
    for name, rows in state.inputs.items():
        part = LayerSpec(f"{prefix}.{name}", "linear", (rows, hidden), state.bias)
        inputs.append(part)
    output_bias = state.bias if state.output_bias is None else state.output_bias
    output = LayerSpec(f"{prefix}.out_proj", "linear", (hidden, state.output_size), output_bias)
    buffers = {"state_in": state.input_size, "state_out": state.output_size}
    params = {}
    for name, shape in state.params.items():
        params[name] = (f"{prefix}.{name}", shape)
    linears = {"in": tuple(inputs), "out": (output,)}
    return MixerParts(linears, {}, buffers, params=params)
