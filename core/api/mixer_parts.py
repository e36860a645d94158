"""What each kind of mixer is made of: matrices, norms and buffers. Torch-free.

Owns: their names in a checkpoint, their shapes and roles. Never does: hold weights. Called by: `DecoderSpec`, and
through it by the weight loading and the memory plan.
"""

from __future__ import annotations

import msgspec

from core.api.specs import AttentionSpec, LatentSpec, LayerSpec, StateSpec


class MixerParts(msgspec.Struct, frozen=True):
    """By role. linears: parts of one entry share their input and may be fused. norms: tensor name and size.

    buffers: width of each buffer of a step. params: other tensors of the mixer, name and shape.
    absorbed: a matrix that the core holds plain, cut into heads, whatever the checkpoint's format, or None; halves: what it
    is cut into, each (heads, N, K).
    interleaved: linear parts whose output has rotary pairs (2i, 2i + 1), by name: rows of a head, and how many of its
    last ones rotate.
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
    """q, k and v side by side, and what the heads give. biases: of q, k and v, and of the output."""
    q, k, v = a.num_heads * a.head_size, a.num_kv_heads * a.head_size, a.num_kv_heads * a.head_size_v
    linears = {
        "qkv": tuple(
            LayerSpec(f"{prefix}.{name}_proj", "linear", (rows, hidden), biases[0])
            for name, rows in (("q", q), ("k", k), ("v", v))
        ),
        "o": (LayerSpec(f"{prefix}.o_proj", "linear", (hidden, a.num_heads * a.head_size_v), biases[1], True),),
    }
    norms = {role: (f"{prefix}.{role}_norm.weight", a.head_size) for role in ("q", "k") if qk_norm}
    return MixerParts(linears, norms, {"qkv": q + k + v, "attention": a.num_heads * a.head_size_v})


def latent_parts(a: LatentSpec, prefix: str, hidden: int, *, bias: bool, interleaved: bool) -> MixerParts:
    """The projections to the latents of queries (or queries themselves) and keys side by side, and what follows.

    bias: of all projections of the hidden state, but of queries without a latent, and of the output.
    """
    head = a.head_size_nope + a.rope_size
    q, kv, values = a.num_heads * head, a.rank + a.rope_size, a.num_heads * a.head_size_v
    first = ("q_proj", q) if a.q_rank is None else ("q_a_proj", a.q_rank)
    queries = LayerSpec(f"{prefix}.{first[0]}", "linear", (first[1], hidden), bias and a.q_rank is not None)
    keys = LayerSpec(f"{prefix}.kv_a_proj_with_mqa", "linear", (kv, hidden), bias)
    linears = {"a": (queries, keys), "o": (LayerSpec(f"{prefix}.o_proj", "linear", (hidden, values), bias, True),)}
    norms = {"kv_a": (f"{prefix}.kv_a_layernorm.weight", a.rank)}
    latents = a.num_heads * a.rank
    buffers = {"latent_a": first[1] + kv, "latent_q": latents, "latent_out": latents, "attention": values}
    if a.q_rank is not None:
        queries = LayerSpec(f"{prefix}.q_b_proj", "linear", (q, a.q_rank))
        linears["q_b"] = (queries,)
        norms["q_a"] = (f"{prefix}.q_a_layernorm.weight", a.q_rank)
        buffers["latent_q_b"] = q
    up = LayerSpec(f"{prefix}.kv_b_proj", "linear", (a.num_heads * (a.head_size_nope + a.head_size_v), a.rank))
    halves = (a.rank, a.head_size_nope), (a.head_size_v, a.rank)
    cut = tuple(LayerSpec(up.name, "linear", (a.num_heads, *shape)) for shape in halves)
    pairs = {queries.name: (head, a.rope_size), keys.name: (kv, a.rope_size)} if interleaved else {}
    return MixerParts(linears, norms, buffers, up, cut, pairs)


def state_parts(state: StateSpec, prefix: str, hidden: int) -> MixerParts:
    """The inputs side by side, what the op gives, and the op's own tensors."""
    inputs = (LayerSpec(f"{prefix}.{name}", "linear", (n, hidden), state.bias) for name, n in state.inputs.items())
    out = LayerSpec(f"{prefix}.out_proj", "linear", (hidden, state.output_size), state.bias)
    buffers = {"state_in": state.input_size, "state_out": state.output_size}
    params = {name: (f"{prefix}.{name}", shape) for name, shape in state.params.items()}
    return MixerParts({"in": tuple(inputs), "out": (out,)}, {}, buffers, params=params)
