"""Division of layers with a state: the heads or channels that a rank holds. Torch-free.

Owns: for each op that can be divided, the widths of its inputs side by side, of the channels of its convolution, and of
its own tensors. Never does: define an op (`core_runtime.models.state_ops` does), cut a tensor (the loading does).
Called by: `model_part`, the description of mixers, and that of pages.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from core.api.errors import UserError
from core.api.specs import StateSpec
from core_runtime.specs.shares import group_share, share_of


class _Widths(msgspec.Struct, frozen=True):
    """The widths of one op.

    inputs: of the parts of its input, in their order.
    channels: of the parts of its convolution, in their order.
    tensors: lengths of the axes that ranks divide, by parameter.
    output: of its output.
    state: numbers of the recurrent state for one number of the output.
    """

    inputs: tuple[int, ...]
    channels: tuple[int, ...]
    tensors: dict[str, int]
    output: int
    state: int


def local_state(state: StateSpec, size: int) -> StateSpec:
    """Return the layer of one of `size` ranks. Raises UserError if it cannot be divided this way."""
    sizes = _local_sizes(state, size)
    before = _widths(state.op, state.sizes)
    after = _widths(state.op, sizes)
    params = {name: _shape(name, shape, before, after) for name, shape in state.params.items()}
    window = (sizes["kernel"] - 1) * sum(after.channels)
    return msgspec.structs.replace(
        state,
        sizes=sizes,
        inputs={name: sum(after.inputs[parts]) for name, parts in _inputs(state, before).items()},
        params=params,
        output_size=after.output,
        state_size=window + after.output * after.state,
    )


def state_sections(state: StateSpec) -> dict[str, tuple[int, ...]]:
    """Return the sections of inputs and parameters that ranks divide one by one, by name; see `LayerSpec.sections`."""
    if state.op not in _DIVIDED:
        return {}
    widths = _widths(state.op, state.sizes)
    found = {name: widths.inputs[parts] for name, parts in _inputs(state, widths).items()}
    for name in state.params:
        if name.startswith("conv"):
            found[name] = widths.channels
    return {name: sections for name, sections in found.items() if len(sections) > 1}


def state_parts(state: StateSpec) -> tuple[int, tuple[int, ...], int] | None:
    """Return what a state has in its bytes: earlier tokens, the channels that each of them has, in their order, and then the
    numbers of its heads. None: its op is not divided.
    """
    if state.op not in _DIVIDED:
        return None
    widths = _widths(state.op, state.sizes)
    past, rest = state.sizes["kernel"] - 1, widths.output * widths.state
    is_all = state.window_size == past * sum(widths.channels) and state.state_size == state.window_size + rest
    return (past, widths.channels, rest) if is_all else None


def _inputs(state: StateSpec, widths: _Widths) -> dict[str, slice]:
    """Return the parts of the op's input that each projection computes."""
    found = {}
    first = 0
    for name, rows in state.inputs.items():
        stop = first
        while sum(widths.inputs[first:stop]) < rows:
            stop += 1
        found[name] = slice(first, stop)
        first = stop
    return found


def _shape(name: str, shape: tuple[int, ...], before: _Widths, after: _Widths) -> tuple[int, ...]:
    """Return a rank's shape of a parameter."""
    part, _, rest = name.partition("_conv1d")
    if rest:
        return after.channels["qkv".index(part)], *shape[1:]
    if name.startswith("conv"):
        return sum(after.channels), *shape[1:]
    if name not in before.tensors:
        return shape
    axis = shape.index(before.tensors[name])
    return *shape[:axis], after.tensors[name], *shape[axis + 1 :]


def _local_sizes(state: StateSpec, size: int) -> dict[str, int]:
    """Return the sizes of a rank's layer."""
    if state.op not in _DIVIDED:
        raise UserError(
            f"a layer with a state ({state.op}) sums over all its channels and cannot be divided into {size} parts; "
            "use one part"
        )
    sizes = dict(state.sizes)
    for name in _DIVIDED[state.op]:
        sizes[name] = share_of(sizes[name], size, f"{name.replace('_', ' ')} of a layer with a state ({state.op})")
    for name in _SHARED.get(state.op, ()):
        sizes[name] = group_share(sizes[name], size, f"{name.replace('_', ' ')} of a layer with a state ({state.op})")
    if state.op == "mamba2" and state.choices["norm"] != "none":
        if state.sizes["norm_groups"] % size:
            raise UserError(
                f"a layer with a state (mamba2) normalizes its output in {state.sizes['norm_groups']} groups, and cannot be "
                f"divided into {size} parts; use a number of parts that divides the groups"
            )
        sizes["norm_groups"] //= size
    return sizes


_DIVIDED: Mapping[str, tuple[str, ...]] = {
    "short_conv": ("channels",),
    "gated_delta": ("value_heads",),
    "kda": ("heads",),
    "mamba2": ("heads",),
}
"""The sizes of each op that are divided evenly."""
_SHARED: Mapping[str, tuple[str, ...]] = {"gated_delta": ("key_heads",), "mamba2": ("groups",)}
"""Those that ranks share where there are fewer than ranks."""


def _widths(op: str, sizes: Mapping[str, int]) -> _Widths:
    if op == "short_conv":
        channels = sizes["channels"]
        return _Widths((channels,) * 3, (channels,), {}, channels, 0)
    if op == "mamba2":
        inner = sizes["heads"] * sizes["head_size"]
        group = sizes["groups"] * sizes["state"]
        tensors = dict.fromkeys(("dt_bias", "A_log", "D"), sizes["heads"]) | {"norm.weight": inner}
        channels_of = (inner, group, group)
        return _Widths((inner, *channels_of, sizes["heads"]), channels_of, tensors, inner, sizes["state"])
    key_size = sizes["key_size"]
    if op == "gated_delta":
        keys = sizes["key_heads"] * key_size
        heads = sizes["value_heads"]
        values = heads * sizes["value_size"]
        tensors = {"A_log": heads, "dt_bias": heads}
        return _Widths((keys, keys, values, values, heads, heads), (keys, keys, values), tensors, values, key_size)
    heads = sizes["heads"]
    keys = heads * key_size
    values = heads * sizes["value_size"]
    tensors = {"A_log": heads, "dt_bias": keys, "f_b_proj.weight": keys, "g_b_proj.weight": values}
    inputs = (keys, keys, values, sizes["decay_rank"] or keys, heads, sizes["gate_rank"] or values)
    return _Widths(inputs, (keys, keys, values), tensors, values, key_size)
