"""The parts of each kind of mixer: matrices, norms and buffers. Torch-free.

Owns: their names in a checkpoint, their shapes and roles. Never does: hold weights. Called by: `DecoderSpec`, and
through it by the weight loading and the memory plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from core.api.specs import AttentionSpec, Groups, LatentSpec, LayerSpec, RotaryPairs, RowOrder, StateSpec
from core_runtime.specs.block_spec import HeadNormSpec, HeadsSpec, NormSpec
from core_runtime.specs.local_state import state_sections

INDEX_NORM: Final = NormSpec(kind="layer", eps=1e-6, bias=True)
"""Norm of an index's keys."""


class NormTensor(msgspec.Struct, frozen=True):
    """A normalization in a checkpoint.

    name: module name, without `.weight`.
    shape: shape of its weights.
    """

    name: str
    shape: tuple[int, ...]
    spec: NormSpec

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of its tensors; empty without weights and bias."""
        found = {}
        if self.spec.weighted:
            found[f"{self.name}.weight"] = self.shape
        if self.spec.bias:
            found[f"{self.name}.bias"] = self.shape
        return found


class MixerParts(msgspec.Struct, frozen=True):
    """The parts of one mixer, by role.

    linears: matrices; parts of one entry share their input and may be fused.
    norms: norms of the mixer itself.
    buffers: width of each step buffer.
    absorbed: a matrix that the core stores as a plain one, cut into heads, whatever the checkpoint's format, or None.
    halves: the parts that the absorbed matrix is cut into, each (heads, N, K).
    orders: by name of a linear part or a norm, the steps that put its rows into the engine's order.
    params: name and shape of further tensors of the mixer.
    sections: sections of some of these that ranks divide one by one, see `LayerSpec.sections`.
    """

    linears: dict[str, tuple[LayerSpec, ...]]
    norms: dict[str, NormTensor]
    buffers: dict[str, int]
    absorbed: LayerSpec | None = None
    halves: tuple[LayerSpec, ...] = ()
    orders: dict[str, tuple[RowOrder, ...]] = {}
    params: dict[str, tuple[str, tuple[int, ...]]] = {}
    sections: dict[str, tuple[int, ...]] = {}


def merged(parts: Sequence[MixerParts]) -> MixerParts:
    """Merge the parts of all mixers of a block, whose roles are distinct."""
    if len(parts) == 1:
        return parts[0]
    result = MixerParts({}, {}, {})
    for one in parts:
        result = MixerParts(
            linears={**result.linears, **one.linears},
            norms={**result.norms, **one.norms},
            buffers={**result.buffers, **one.buffers},
            absorbed=result.absorbed or one.absorbed,
            halves=result.halves or one.halves,
            orders={**result.orders, **one.orders},
            params={**result.params, **one.params},
            sections={**result.sections, **one.sections},
        )
    return result


def attention_parts(
    a: AttentionSpec, prefix: str, hidden: int, heads: HeadsSpec, pairs: int, around: NormSpec, width: int | None = None
) -> MixerParts:
    """Return the parts of attention: q, the gate of the output, k and v concatenated, and the output projection.

    pairs: number of leading values in a head that rotate in pairs (2i, 2i + 1); 0: none.
    around: the model's usual norm, which a latent of queries has, too.
    width: size of the input of a token; None: the hidden size.
    """
    values = a.num_heads * a.head_size_v
    read = width or hidden
    inputs = _inputs(a, prefix, read, heads)
    output = LayerSpec(f"{prefix}.o_proj", "linear", (hidden, values), heads.out_bias, summed=True)
    linears: dict[str, tuple[LayerSpec, ...]] = {"qkv": inputs, "o": (output,)}
    width = sum(part.shape[0] for part in inputs)
    buffers = {"qkv": width, "attention": values}
    orders = _orders(a, prefix, heads, pairs)
    norms: dict[str, NormTensor] = {}
    if heads.query_rank:
        linears["wq"] = (LayerSpec(f"{prefix}.wq", "linear", (a.num_heads * a.head_size, heads.query_rank)),)
        norms["q_latent"] = NormTensor(f"{prefix}.inter_norm", (heads.query_rank,), around)
        buffers["latent_q"] = a.num_heads * a.head_size
    if heads.low_rank:
        sizes = {"q": a.num_heads * a.head_size, "k": a.num_kv_heads * a.head_size, "v": a.num_kv_heads * a.head_size_v}
        names = {part: f"{prefix}.{part}_low_rank" for part in sizes}
        linears["low"] = tuple(LayerSpec(f"{name}.0", "linear", (heads.low_rank, read)) for name in names.values())
        for part, size in sizes.items():
            linears[f"low_{part}"] = (LayerSpec(f"{names[part]}.1", "linear", (size, heads.low_rank)),)
        buffers["heads_low_rank"] = len(sizes) * heads.low_rank
    params: dict[str, tuple[str, tuple[int, ...]]] = {}
    if heads.norm is not None:
        norms["q"] = _head_norm(f"{prefix}.q_norm", heads.norm, a.num_heads, a.head_size)
        if not heads.borrows:
            norms["k"] = _head_norm(f"{prefix}.k_norm", heads.norm, a.num_kv_heads, a.head_size)
    if heads.value_norm is not None and not heads.borrows:
        norms["v"] = NormTensor(f"{prefix}.v_norm", (a.head_size_v,), heads.value_norm)
    if heads.out_norm is not None:
        norms["heads_out"] = NormTensor(f"{prefix}.out_norm", (values,), heads.out_norm)
    if a.sinks:
        params["sinks"] = (f"{prefix}.sinks", (a.num_heads,))
    return MixerParts(linears, norms, buffers, orders=orders, params=params)


def _inputs(a: AttentionSpec, prefix: str, hidden: int, heads: HeadsSpec) -> tuple[LayerSpec, ...]:
    """Return the projections of the hidden state, in the order of their outputs in the buffer."""
    q = a.num_heads * a.head_size
    k = a.num_kv_heads * a.head_size
    v = a.num_kv_heads * a.head_size_v
    if heads.fused:
        sections = (q, k, v)
        return (
            LayerSpec(f"{prefix}.qkv_proj", "linear", (sum(sections), hidden), heads.query_bias, sections=sections),
        )
    if heads.query_rank:
        return (
            LayerSpec(f"{prefix}.q_proj", "linear", (heads.query_rank, hidden)),
            LayerSpec(f"{prefix}.k_proj", "linear", (k, hidden)),
            LayerSpec(f"{prefix}.v_proj", "linear", (v, hidden)),
        )
    gate_rows = {"own": a.num_heads * a.head_size_v, "own_heads": a.num_heads}
    if heads.gate == "query":
        queries = LayerSpec(f"{prefix}.q_proj", "linear", (2 * q, hidden), heads.query_bias, sections=(q, q))
    else:
        queries = LayerSpec(f"{prefix}.q_proj", "linear", (q, hidden), heads.query_bias)
    found = [queries]
    if heads.gate in gate_rows:
        found.append(LayerSpec(f"{prefix}.gate_proj", "linear", (gate_rows[heads.gate], hidden)))
    if heads.borrows:
        return tuple(found)
    found.append(LayerSpec(f"{prefix}.k_proj", "linear", (k, hidden), heads.key_bias))
    found.append(LayerSpec(f"{prefix}.v_proj", "linear", (v, hidden), heads.value_bias))
    return tuple(found)


def _orders(a: AttentionSpec, prefix: str, heads: HeadsSpec, pairs: int) -> dict[str, tuple[RowOrder, ...]]:
    """Return the row orders: those of groups first, then those of rotary pairs, which norms of queries and keys also have."""
    q = a.num_heads * a.head_size
    k = a.num_kv_heads * a.head_size
    orders: dict[str, tuple[RowOrder, ...]] = {}
    if heads.fused:
        inner: list[RowOrder] = []
        if heads.fused == "groups":
            group = q // a.num_kv_heads
            inner.append(Groups(a.num_kv_heads, (group, a.head_size, a.head_size_v)))
        if heads.fused == "quarters":
            v = a.num_kv_heads * a.head_size_v
            quarter = (q // 4, v // 4, k // 4)
            inner.append(Groups(4, quarter, order=(0, 2, 1)))
        if pairs:
            inner.append(RotaryPairs(a.head_size, 0, pairs, 0, q + k))
        orders[f"{prefix}.qkv_proj"] = tuple(inner)
    else:
        turned: tuple[RowOrder, ...] = (RotaryPairs(a.head_size, 0, pairs),) if pairs else ()
        first: tuple[RowOrder, ...] = turned
        if heads.gate == "query":
            first = (Groups(a.num_heads, (a.head_size, a.head_size)),)
            if pairs:
                first += (RotaryPairs(a.head_size, 0, pairs, 0, q),)
        orders[f"{prefix}.wq" if heads.query_rank else f"{prefix}.q_proj"] = first
        orders[f"{prefix}.k_proj"] = turned
    if pairs and heads.norm is not None:
        orders[f"{prefix}.q_norm"] = (RotaryPairs(a.head_size, 0, pairs),)
        orders[f"{prefix}.k_norm"] = (RotaryPairs(a.head_size, 0, pairs),)
    return {name: order for name, order in orders.items() if order}


def _head_norm(name: str, norm: HeadNormSpec, num_heads: int, head_size: int) -> NormTensor:
    """Return the norm of queries or keys."""
    shapes = {"head": (head_size,), "heads": (num_heads, head_size), "all": (num_heads * head_size,)}
    return NormTensor(name, shapes[norm.over], norm.norm)


def latent_parts(
    a: LatentSpec, prefix: str, hidden: int, heads: HeadsSpec, *, interleaved: bool, width: int | None = None
) -> MixerParts:
    """Return the projections to the latents of queries (or queries themselves) and keys, concatenated, and the
    following parts.

    heads: its output's bias is also that of the projections of the hidden state; queries without a latent have none.
    width: size of the input of a token; None: the hidden size.
    """
    width = width or hidden
    bias = heads.out_bias
    of_queries, of_keys = (NormSpec(eps=heads.latent_eps, scale=scale) for scale in heads.latent_scales)
    head = a.head_size_nope + a.rope_size
    q = a.num_heads * head
    kv = a.rank + a.rope_size
    latents = a.num_heads * a.rank
    values = a.num_heads * a.head_size_v

    if a.q_rank is None:
        queries = LayerSpec(f"{prefix}.q_proj", "linear", (q, width))
    else:
        queries = LayerSpec(f"{prefix}.q_a_proj", "linear", (a.q_rank, width), bias)
    keys = LayerSpec(f"{prefix}.kv_a_proj_with_mqa", "linear", (kv, width), bias)
    output = LayerSpec(f"{prefix}.o_proj", "linear", (hidden, values), bias, summed=True)
    linears: dict[str, tuple[LayerSpec, ...]] = {"a": (queries, keys), "o": (output,)}
    norms = {"kv_a": NormTensor(f"{prefix}.kv_a_layernorm", (a.rank,), of_keys)}
    buffers = {
        "latent_a": queries.shape[0] + kv,
        "latent_q": latents,
        "latent_out": latents,
        "attention": values,
    }
    if a.q_rank is not None:
        queries = LayerSpec(f"{prefix}.q_b_proj", "linear", (q, a.q_rank))
        if heads.latent_gate:
            sections = (q, values)
            queries = LayerSpec(queries.name, "linear", (q + values, 2 * a.q_rank), sections=sections)
            buffers["latent_both"] = 2 * a.q_rank
        linears["q_b"] = (queries,)
        norms["q_a"] = NormTensor(f"{prefix}.q_a_layernorm", (a.q_rank,), of_queries)
        buffers["latent_q_b"] = queries.shape[0]

    both = a.num_heads * (a.head_size_nope + a.head_size_v)
    up = LayerSpec(f"{prefix}.kv_b_proj", "linear", (both, a.rank))
    to_latent = LayerSpec(up.name, "linear", (a.num_heads, a.rank, a.head_size_nope))
    from_latent = LayerSpec(up.name, "linear", (a.num_heads, a.head_size_v, a.rank))
    orders: dict[str, tuple[RowOrder, ...]] = {}
    if heads.latent_gate:
        orders[queries.name] = (Groups(a.num_heads, (head, a.head_size_v)),)
    if interleaved:
        turned = RotaryPairs(head, a.head_size_nope, a.rope_size, 0, q if heads.latent_gate else None)
        orders[queries.name] = (*orders.get(queries.name, ()), turned)
        orders[keys.name] = (RotaryPairs(kv, a.rank, a.rope_size),)
    parts = MixerParts(linears, norms, buffers, up, (to_latent, from_latent), orders)
    return parts if not a.index_size else merged((parts, _index_parts(a, f"{prefix}.indexer", width, heads)))


def _index_parts(a: LatentSpec, prefix: str, width: int, heads: HeadsSpec) -> MixerParts:
    """Return the parts of an index: queries of the queries' latent, keys and weights of the hidden state, the norm of keys."""
    assert a.index is not None and a.q_rank is not None, "an index reads the latent of queries"
    size, queries = a.index.head_size, a.index.num_heads * a.index.head_size
    q = LayerSpec(f"{prefix}.wq_b", "linear", (queries, a.q_rank))
    k = LayerSpec(f"{prefix}.wk", "linear", (size, width))
    weights = LayerSpec(f"{prefix}.weights_proj", "linear", (a.index.num_heads, width))
    norm = NormTensor(f"{prefix}.k_norm", (size,), INDEX_NORM)
    orders: dict[str, tuple[RowOrder, ...]] = {}
    if heads.index_pairs:
        orders = dict.fromkeys((q.name, k.name, norm.name), (RotaryPairs(size, 0, a.rope_size),))
    linears: dict[str, tuple[LayerSpec, ...]] = {"index_q": (q,), "index_k": (k,), "index_weights": (weights,)}
    buffers = {"index_q": queries, "index_k": size, "index_weights": a.index.num_heads}
    return MixerParts(linears, {"index_k": norm}, buffers, orders=orders)


def state_parts(state: StateSpec, prefix: str, hidden: int) -> MixerParts:
    """Return the inputs, concatenated, the op's output, and the op's own tensors."""
    sections = state_sections(state)
    inputs = []
    for name, rows in state.inputs.items():
        own = sections.get(name, ())
        inputs.append(LayerSpec(f"{prefix}.{name}", "linear", (rows, hidden), state.bias, sections=own))
    output_bias = state.bias if state.output_bias is None else state.output_bias
    output = LayerSpec(f"{prefix}.out_proj", "linear", (hidden, state.output_size), output_bias, summed=True)
    buffers = {"state_in": state.input_size, "state_out": state.output_size}
    params = {}
    for name, shape in state.params.items():
        params[name] = (f"{prefix}.{name}", shape)
    linears = {"in": tuple(inputs), "out": (output,)}
    orders: dict[str, tuple[RowOrder, ...]] = {}
    for name, groups in state.orders.items():
        orders[f"{prefix}.{name}"] = (groups,)
    return MixerParts(linears, {}, buffers, orders=orders, params=params, sections=sections)
