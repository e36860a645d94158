"""The binding of the native routing and grouped products of experts.

Owns: the checks of the tensors passed to these kernels. Never does: pack a weight (`kernels.py` does). Called by:
`NativeKernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from core_platforms.cpu.activation_numbers import activation_numbers, alone_numbers
from core_platforms.cpu.checks import check_rows, check_same, check_table
from core_platforms.cpu.input_rounding import rounds_apart
from core_runtime.contracts import LinearKernel
from core_runtime.layers.experts import COMBINE_RANGES
from core_runtime.specs.routing_spec import RoutingSpec
from core_runtime.weights.input_rounding import InputRounding

SCORES = {"softmax": 0, "sigmoid": 1, "sparse_mixer": 2}


class PackedLayer(Protocol):
    """A linear layer packed by the extension.
    packed: its handle.
    shape: (N, K).
    nbytes: size of the packed weight.
    memory: the caller's memory that it lies in, or None.
    rounding: of its inputs, or None.
    """

    packed: Any
    rounding: InputRounding | None
    memory: Tensor | None
    shape: tuple[int, int]
    nbytes: int

    @property
    def form(self) -> object:
        """Return the fields that decide how inputs are staged."""
        ...


def choose(
    native: ModuleType, logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor
) -> None:
    """Route each token to its experts: the `RouteKernel` contract. Raises ValueError for a routing that `logits` cannot
    serve.
    """
    experts = logits.shape[1]
    rows, stride = check_rows(logits, experts, "logits")
    top_k = routing.top_k
    groups = routing.groups
    candidates = experts // groups * routing.top_groups
    groups_fit = experts % groups == 0 and 1 <= routing.top_groups <= groups
    if not groups_fit or not 1 <= top_k <= candidates:
        raise ValueError(f"{routing} does not fit {experts} experts: groups are equal and hold at least top_k experts")
    problem = routing.problem(bias is not None)
    if problem is not None:
        raise ValueError(problem)
    ids_address, weights_address = _choice(ids, weights, rows)
    if top_k != ids.shape[1]:
        raise ValueError(f"ids has {ids.shape[1]} columns, expected top_k ({top_k})")
    bias_address = 0
    if bias is not None:
        bias_address = check_table(bias, torch.float32, "bias")
        if bias.shape != (experts,):
            raise ValueError(f"bias has shape {tuple(bias.shape)}, expected ({experts},)")
    native.route(
        logits.data_ptr(),
        stride,
        experts,
        rows,
        top_k,
        SCORES[routing.scores],
        routing.renormalize,
        routing.epsilon,
        routing.jitter,
        groups,
        routing.top_groups,
        routing.group_rank == "best_two",
        routing.factor,
        bias_address,
        ids_address,
        weights_address,
    )


def _choice(ids: Tensor, weights: Tensor, rows: int) -> tuple[int, int]:
    """Return the addresses of ids int64 [T, k] and weights float32 [T, k]. Raises ValueError."""
    if ids.shape != weights.shape:
        raise ValueError(f"weights has shape {tuple(weights.shape)}, expected the shape of ids {tuple(ids.shape)}")
    check_same(rows, ids.shape[0], "ids")
    ids_address = check_table(ids, torch.int64, "ids")
    weights_address = check_table(weights, torch.float32, "weights")
    return ids_address, weights_address


class NativeExperts:
    """The experts of one layer, all in one format; implements the `ExpertsKernel` contract."""

    __slots__ = ("_down", "_gate_up", "_handle", "_native", "_run", "_weight_inputs", "hidden", "nbytes")

    capturable = True

    def __init__(
        self,
        native: ModuleType,
        gate_up: Sequence[PackedLayer],
        down: Sequence[PackedLayer],
        activation: str,
        weight_inputs: bool,
        max_ranges: int,
    ) -> None:
        first_size, self.hidden = gate_up[0].shape
        inner = down[0].shape[1]
        plain = first_size == inner
        shapes_fit = first_size in (inner, 2 * inner) and down[0].shape[0] == self.hidden
        if len(gate_up) != len(down) or not shapes_fit:
            shapes = f"{len(gate_up)} of {gate_up[0].shape} and {len(down)} of {down[0].shape}"
            raise ValueError(f"experts have {shapes}, expected as many of (2 * I, H), or (I, H), as of (H, I)")
        # The packed weights must live as long as the handle that points to them.
        self._gate_up, self._down = list(gate_up), list(down)
        self.nbytes = sum(layer.nbytes for layer in (*gate_up, *down))
        first = [layer.packed for layer in gate_up]
        second = [layer.packed for layer in down]
        numbers = alone_numbers(activation) if plain else activation_numbers(activation)
        partial = max_ranges < COMBINE_RANGES
        own_inputs = rounds_apart(gate_up[0].rounding)
        options = (plain, weight_inputs, partial, own_inputs, max_ranges)
        self._handle = native.experts_pack(first, second, *options, *numbers)
        self._native = native
        self._run = native.experts
        self._weight_inputs = weight_inputs

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, H] (+)= the weighted sum of each token's experts. Raises IndexError for an expert id out of
        range.
        """
        self._compute(x, ids, weights, out, self.hidden, accumulate=accumulate, apart=False)

    def place(self, ids: Tensor, table: Tensor, per_rank: int, rank: int, loads: Tensor, slots: Tensor) -> None:
        """Find the rank's own slot of each choice: the `HoldsSomeExperts` contract."""
        rows, top_k = ids.shape
        check_same(rows, slots.shape[0], "slots")
        self._native.experts_place(
            check_table(ids, torch.int64, "ids"),
            check_table(table, torch.int32, "table"),
            table.shape[0],
            table.shape[1],
            rows,
            top_k,
            per_rank,
            rank,
            check_table(loads, torch.int64, "loads"),
            check_table(slots, torch.int64, "slots"),
        )

    def apart(self, x: Tensor, slots: Tensor, weights: Tensor, out: Tensor) -> None:
        """Write the output of each choice to out[T, k * H]: the `HoldsSomeExperts` contract."""
        self._compute(x, slots, weights, out, slots.shape[1] * self.hidden, accumulate=False, apart=True)

    def combine(
        self, outputs: Tensor, ids: Tensor, weights: Tensor, count: int, out: Tensor, *, accumulate: bool = False
    ) -> None:
        """Add up the outputs of all ranks: the `HoldsSomeExperts` contract."""
        rows, top_k = ids.shape
        if outputs.shape != (rows, top_k * self.hidden):
            raise ValueError(f"outputs has shape {tuple(outputs.shape)}, expected {(rows, top_k * self.hidden)}")
        ids_address, weights_address = _choice(ids, weights, rows)
        out_rows, out_stride = check_rows(out, self.hidden, "out")
        check_same(rows, out_rows, "out")
        self._native.experts_combine(
            check_table(outputs, torch.float32, "outputs"),
            self.hidden,
            rows,
            top_k,
            ids_address,
            0 if self._weight_inputs else weights_address,
            count,
            out.data_ptr(),
            out_stride,
            accumulate,
        )

    def fits(self, gate_up: LinearKernel, down: LinearKernel) -> bool:
        """Whether an expert has the form of those here: the `HoldsSomeExperts` contract."""
        return _is_alike(gate_up, self._gate_up[0]) and _is_alike(down, self._down[0])

    def replace(self, slot: int, gate_up: LinearKernel, down: LinearKernel) -> list[Tensor]:
        """Put another expert in a slot: the `HoldsSomeExperts` contract. Raises ValueError for one that does not fit."""
        if not (_is_alike(gate_up, self._gate_up[slot]) and _is_alike(down, self._down[slot])):
            raise ValueError("an expert of another form cannot take the place of this one")
        self._native.experts_replace(self._handle, slot, gate_up.packed, down.packed)
        former = self._gate_up[slot].memory, self._down[slot].memory
        self._gate_up[slot], self._down[slot] = gate_up, down
        return [memory for memory in former if memory is not None]

    def _compute(
        self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, width: int, *, accumulate: bool, apart: bool
    ) -> None:
        rows, stride = check_rows(x, self.hidden, "x")
        out_rows, out_stride = check_rows(out, width, "out")
        check_same(rows, out_rows, "out")
        ids_address, weights_address = _choice(ids, weights, rows)
        self._run(
            self._handle,
            x.data_ptr(),
            stride,
            rows,
            ids.shape[1],
            ids_address,
            weights_address,
            out.data_ptr(),
            out_stride,
            accumulate,
            apart,
        )


def _is_alike(other: object, held: PackedLayer) -> TypeGuard[PackedLayer]:
    """Whether a kernel can take the place of a held one."""
    return isinstance(other, type(held)) and other.form == held.form
