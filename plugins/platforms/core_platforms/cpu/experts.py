"""The binding of the native routing and grouped products of experts.

Owns: the checks of the tensors passed to these kernels. Never does: pack a weight (`kernels.py` does). Called by:
`NativeKernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from core_platforms.cpu.checks import check_rows, check_same, check_table
from core_platforms.cpu.native_linear import activation_numbers, alone_numbers
from core_runtime.specs.routing_spec import RoutingSpec

SCORES = {"softmax": 0, "sigmoid": 1, "sparse_mixer": 2}


class PackedLayer(Protocol):
    """A linear layer packed by the extension.
    packed: its handle.
    shape: (N, K).
    nbytes: size of the packed weight.
    """

    packed: Any
    shape: tuple[int, int]
    nbytes: int


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

    __slots__ = ("_handle", "_layers", "_run", "hidden", "nbytes")

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
        self._layers = (*gate_up, *down)  # the packed weights must live as long as the handle that points to them
        self.nbytes = sum(layer.nbytes for layer in self._layers)
        first = [layer.packed for layer in gate_up]
        second = [layer.packed for layer in down]
        numbers = alone_numbers(activation) if plain else activation_numbers(activation)
        self._handle = native.experts_pack(first, second, plain, weight_inputs, max_ranges, *numbers)
        self._run = native.experts

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, H] (+)= the weighted sum of each token's experts. Raises IndexError for an expert id out of
        range.
        """
        rows, stride = check_rows(x, self.hidden, "x")
        out_rows, out_stride = check_rows(out, self.hidden, "out")
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
        )
