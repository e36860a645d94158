"""Checks of kernel providers: each operation against the reference operations, formats, honesty, equal bits.

Owns: the checks. Never does: define an operation; `core_runtime.layers.reference` does. Called by: `core_kit.suite`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_kit.case import Failure, Skipped, Subject
from core_kit.checks.experts import experts_equal_reference, route_equals_reference, route_survives_odd_values
from core_kit.checks.input_rounding import input_rounding_equals_steps
from core_kit.checks.low_rank import (
    low_rank_equals_reference,
    low_rank_joins_as_apart,
    low_rank_rows_are_apart,
    low_rank_tables_change,
)
from core_kit.checks.sampling import logprobs_equal_sampler, masked_race_equals_race, race_equals_sampler
from core_kit.fixtures.weights import activations, linear_query, random_weights
from core_kit.oracles.numbers import close, generator, same_bits
from core_kit.oracles.operations import ALONE, OPERATIONS, served_activations
from core_runtime.contracts import HasActivate, HasActivated, HasGated, Kernels, LinearKernel
from core_runtime.layers.features import features_of
from core_runtime.layers.kernels import weight_format
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.formats import CanonicalWeight, Dense, HasGroups

SHAPES = ((64, 64), (33, 128), (130, 96), (1, 32), (7, 77))
ROWS = (1, 17)


def says_what_it_lacks(subject: Subject) -> None:
    """An unknown operation, format or device is refused with a reason."""
    odd = {
        "an unknown operation": KernelQuery("no_such_operation", subject.device),
        "a norm on an unknown device": KernelQuery("rms_norm", "no_such_device"),
        "an unknown format": KernelQuery("linear", subject.device, "no_such_format", "none", (64, 64)),
    }
    for activation, weight, _ in _served(subject):
        query = linear_query("no_such_device", weight, activation)
        odd[f"a {query.format} matrix on an unknown device"] = query
    for what, query in odd.items():
        reasons = subject.loaded.supports(query)
        sound = all(isinstance(reason, Reason) for reason in reasons)
        if not (reasons and sound):
            raise Failure(f"supports answers {reasons!r} to {what}; expected a list with a Reason")


def serves_what_it_declares(subject: Subject) -> None:
    """It serves a matrix of every format that it declares, and declares every format that it serves."""
    declared = subject.manifest.spec.capabilities.get("formats")
    if declared is None:
        return
    served = {weight_format(weight) for _, weight, _ in _served(subject)}
    known = {weight_format(weight) for weight in random_weights((64, 64))}
    unserved = set(declared) & known - served
    if unserved:
        raise Failure(f"it declares '{min(unserved)}' but serves it nowhere")
    undeclared = served - set(declared)
    if undeclared:
        raise Failure(f"it serves '{min(undeclared)}' undeclared")


def linear_equals_reference(subject: Subject) -> None:
    """linear equals the reference for every format, activation and shape it supports: bias, accumulation, strides, gates."""
    tried = 0
    for activation, weight, label in _served(subject):
        tried += 1
        _compare_linear(subject.loaded, activation, weight, label)
    if not tried:
        raise Skipped("it serves no matrix product of the formats known here")


def embedding_equals_reference(subject: Subject) -> None:
    """rows gives exactly the rows of the matrix."""
    for activation, weight, label in _served(subject):
        n, k = weight.shape
        ids = torch.tensor([0, n - 1, n // 2, n // 2])
        out = torch.full((4, k), torch.nan)
        kernel = subject.loaded.linear(weight, activation=activation)
        kernel.rows(ids, out)
        exact = weight.rows(ids).dequantize()
        tolerance = 1e-2 if activation == "bf16" else 1e-6
        close(out, exact, tolerance, f"rows of {label}")


def memory_is_told(subject: Subject) -> None:
    """A prepared matrix tells the bytes it holds: at least the canonical weight's, at most the padding it declares."""
    side = int(subject.manifest.spec.capabilities.get("row_multiple", 1))
    for activation, weight, label in _served(subject):
        kernel = subject.loaded.linear(weight, activation=activation)
        if tuple(kernel.shape) != tuple(weight.shape):
            raise Failure(f"{label}: shape {kernel.shape}, expected {weight.shape}")
        n = weight.shape[0]
        padded_rows = -(-n // side) * side
        # A plain float32 matrix may be stored in 16 bits.
        smallest = 0.5 if isinstance(weight, Dense) else 1.0
        least = weight.nbytes * smallest
        most = weight.nbytes * (padded_rows / n)
        if not least <= kernel.nbytes <= most * 1.05 + 4096:
            raise Failure(f"{label}: tells {kernel.nbytes} bytes, expected from {least:.0f} to {most:.0f}")


def operations_equal_reference(subject: Subject) -> None:
    """Norms, rotary embedding, gates, caps and the other small operations equal the reference wherever they are supported."""
    kernels = subject.loaded
    alike = ReferenceKernels()
    alike.features = frozenset(features_of(kernels))  # operations that it does not serve are not compared
    tried = 0
    for name, operation in OPERATIONS.items():
        if not hasattr(kernels, name) or kernels.supports(KernelQuery(name, subject.device)):
            continue
        tried += 1
        for rows in ROWS:
            got = operation(kernels, rows)
            expected = operation(alike, rows)
            for mine, reference in zip(got, expected, strict=True):
                close(mine, reference, 1e-5, f"{name} of {rows} rows")
    if not tried:
        raise Skipped("it serves only matrix products")


def batch_invariant_as_claimed(subject: Subject) -> None:
    """With `batch_invariant`: a row's bits are the same alone and among others."""
    if not subject.manifest.spec.capabilities.get("batch_invariant"):
        raise Skipped("it does not claim batch_invariant; `core config explain` says so to users")
    for activation, weight, label in _served(subject):
        kernel = subject.loaded.linear(weight, activation=activation)
        n, k = weight.shape
        x = torch.randn(33, k, generator=generator(label))
        out = torch.empty(33, n)
        kernel(x, out)
        for row in (0, 13, 32):
            alone = torch.empty(1, n)
            kernel(x[row : row + 1].clone(), alone)
            same_bits(alone[0], out[row], f"row {row} of {label} alone, compared with among 33")


CHECKS = (
    says_what_it_lacks,
    serves_what_it_declares,
    linear_equals_reference,
    embedding_equals_reference,
    memory_is_told,
    operations_equal_reference,
    race_equals_sampler,
    masked_race_equals_race,
    logprobs_equal_sampler,
    route_equals_reference,
    route_survives_odd_values,
    experts_equal_reference,
    input_rounding_equals_steps,
    low_rank_equals_reference,
    low_rank_rows_are_apart,
    low_rank_tables_change,
    low_rank_joins_as_apart,
    batch_invariant_as_claimed,
)


def _served(subject: Subject) -> Iterator[tuple[Activation, CanonicalWeight, str]]:
    """Yield every (activation, weight) that the provider supports."""
    for shape in SHAPES:
        for weight in random_weights(shape):
            for activation in activations(weight):
                query = linear_query(subject.device, weight, activation)
                if not subject.loaded.supports(query):
                    yield activation, weight, f"{_described(weight)}, activation {activation}"


def _described(weight: CanonicalWeight) -> str:
    described = f"{weight_format(weight)} {weight.shape}"
    if isinstance(weight, HasGroups) and 0 < weight.group_size < weight.shape[1]:
        described += f", groups of {weight.group_size}"
    return described


def _compare_linear(kernels: Kernels, activation: Activation, weight: CanonicalWeight, label: str) -> None:
    random = generator(label)
    n, k = weight.shape
    bias = torch.randn(n, generator=random)
    mine = kernels.linear(weight, activation=activation, bias=bias)
    reference = ReferenceKernels().linear(weight, activation=activation, bias=bias)
    exact = activation == "none" and weight_format(weight) != "bfloat16"
    tolerance = 2e-5 if exact else 2e-2
    for rows in ROWS:
        wide = torch.randn(rows, k + 8, generator=random)
        x = wide[:, :k]
        start = torch.randn(rows, n, generator=random)
        for accumulate in (False, True):
            got = _unwritten(rows, n)
            expected = _unwritten(rows, n)
            if accumulate:
                got.copy_(start)
                expected.copy_(start)
            mine(x, got, accumulate=accumulate)
            reference(x, expected, accumulate=accumulate)
            how = ", accumulated" if accumulate else ""
            close(got, expected, tolerance, f"{label}, {rows} rows{how}")
        _compare_gated(kernels, mine, x, f"{label}, {rows} rows")
        _compare_activated(kernels, mine, x, f"{label}, {rows} rows")


def _unwritten(rows: int, width: int) -> Tensor:
    """Return NaN [rows, width] with gaps between the rows."""
    return torch.full((rows, width + 4), torch.nan)[:, :width]


def _compare_gated(kernels: Kernels, linear: LinearKernel, x: Tensor, label: str) -> None:
    """Compare a kernel's own gated product with its plain one followed by the gate."""
    together = linear.gated if isinstance(linear, HasGated) else None
    if together is None:
        return
    served = not kernels.supports(KernelQuery("gated", x.device.type))
    gate = kernels.gated if served else ReferenceKernels().gated
    rows = len(x)
    n = linear.shape[0]
    inner = n // 2
    both = torch.empty(rows, n)
    linear(x, both)
    for activation in served_activations(linear):
        got = _unwritten(rows, inner)
        expected = _unwritten(rows, inner)
        together(x, activation, got)
        gate(both, activation, expected)
        same_bits(got, expected, f"{label}, gated by {activation} in one call, compared with in two")


def _compare_activated(kernels: Kernels, linear: LinearKernel, x: Tensor, label: str) -> None:
    """Compare a kernel's own product with an activation with its plain one followed by the activation."""
    together = linear.activated if isinstance(linear, HasActivated) else None
    if together is None:
        return
    served = not kernels.supports(KernelQuery("activate", x.device.type))
    activate = kernels.activate if served and isinstance(kernels, HasActivate) else ReferenceKernels().activate
    n = linear.shape[0]
    y = torch.empty(len(x), n)
    linear(x, y)
    for activation in served_activations(linear, ALONE):
        got = _unwritten(len(x), n)
        expected = _unwritten(len(x), n)
        together(x, activation, got)
        activate(y, activation, expected)
        same_bits(got, expected, f"{label} and {activation} in one call, compared with in two")
