"""Checks of kernel providers: each operation against the reference operations, formats, honesty, equal bits.

Owns: those checks. Never does: define an operation; `core.layers.reference` does. Called by: `core.testing.suite`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core.layers.kernels import weight_format
from core.layers.reference import ReferenceKernels
from core.plugin.contracts import Kernels
from core.testing.case import Failure, Skipped, Subject
from core.testing.numbers import close, generator, same_bits
from core.weights.formats import CanonicalWeight, Dense, IntGroups

ACTIVATIONS: tuple[Activation, ...] = ("none", "bf16", "int8")
SHAPES = ((64, 64), (33, 128), (130, 96))
ROWS = (1, 17)


def says_what_it_lacks(subject: Subject) -> None:
    """An unknown operation, format or device is refused with a reason."""
    odd = {
        "an unknown operation": KernelQuery("no_such_operation", subject.device),
        "a norm on an unknown device": KernelQuery("rms_norm", "no_such_device"),
        "an unknown format": KernelQuery("linear", subject.device, "no_such_format", "none", (64, 64)),
    }
    for activation, weight, _ in _served(subject):
        attributes = {"group_size": weight.group_size} if isinstance(weight, IntGroups) else {}
        form = weight_format(weight)
        query = KernelQuery("linear", "no_such_device", form, activation, weight.shape, attributes)
        odd[f"a {form} matrix on an unknown device"] = query
    for what, query in odd.items():
        reasons = subject.loaded.supports(query)
        if not reasons or not all(isinstance(reason, Reason) for reason in reasons):
            raise Failure(f"supports answers {reasons!r} to {what}; expected a list with a Reason")


def serves_what_it_declares(subject: Subject) -> None:
    """It serves a matrix of every format that it declares, and declares every format that it serves."""
    declared = subject.manifest.spec.capabilities.get("formats")
    if declared is None:
        return
    served = {weight_format(weight) for _, weight, _ in _served(subject)}
    known = {weight_format(weight) for weight in _weights((64, 64))}
    unserved, undeclared = set(declared) & known - served, served - set(declared)
    if unserved or undeclared:
        what = (
            f"declares '{min(unserved)}' but serves it nowhere"
            if unserved
            else f"serves '{min(undeclared)}' undeclared"
        )
        raise Failure(f"it {what}")


def linear_equals_reference(subject: Subject) -> None:
    """linear equals the reference for every format, activation and shape it supports: bias, accumulation, strides."""
    tried = 0
    for activation, weight, label in _served(subject):
        tried += 1
        _compare_linear(subject.loaded, activation, weight, label)
    if not tried:
        raise Skipped("it serves no matrix product of the formats known here")


def embedding_equals_reference(subject: Subject) -> None:
    """rows gives exactly the rows of the matrix."""
    for activation, weight, label in _served(subject):
        ids = torch.tensor([0, weight.shape[0] - 1, 3, 3])
        out = torch.full((4, weight.shape[1]), torch.nan)
        subject.loaded.linear(weight, activation=activation).rows(ids, out)
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
        padded = -(-weight.shape[0] // side) * side / weight.shape[0]
        least, most = weight.nbytes * (0.5 if isinstance(weight, Dense) else 1.0), weight.nbytes * padded
        if not least <= kernel.nbytes <= most * 1.05 + 4096:
            raise Failure(f"{label}: tells {kernel.nbytes} bytes, expected from {least:.0f} to {most:.0f}")


def operations_equal_reference(subject: Subject) -> None:
    """Norms, rotary embedding, gates, addition and scaling equal the reference wherever they are supported."""
    tried = [name for name in OPERATIONS if _supports(subject, name)]
    for name in tried:
        for rows in ROWS:
            got, expected = (OPERATIONS[name](kernels, rows) for kernels in (subject.loaded, ReferenceKernels()))
            for mine, reference in zip(got, expected, strict=True):
                close(mine, reference, 1e-5, f"{name} of {rows} rows")
    if not tried:
        raise Skipped("it serves only matrix products")


def race_equals_sampler(subject: Subject) -> None:
    """race draws the tokens that the sampler draws, to the bit."""
    if not hasattr(subject.loaded, "race") or not _supports(subject, "race"):
        raise Skipped("it has no sampling kernel")
    from core.sampling.noise import NoiseKey
    from core.sampling.race import Entrant, winners

    logits = torch.randn(3, 500, generator=generator("race")) * 4
    keys = [NoiseKey(seed, index, 0) for seed, index in ((1, 0), (2**40, 7), (5, 3))]
    heats, out = (0.7, 1.0, 2.0), torch.empty(3, dtype=torch.int64)
    words = [(key.seed & 0xFFFFFFFF, key.seed >> 32, key.index, key.choice, key.purpose) for key in keys]
    subject.loaded.race(logits, torch.arange(3), torch.tensor(words), torch.tensor(heats), out)
    got, entrants = out.tolist(), []
    for row, key, heat in zip(logits, keys, heats, strict=True):
        scaled = (row - row.max()) / torch.tensor(heat, dtype=torch.float32)
        entrants.append(Entrant(key, scaled.numpy()))
    if got != winners(entrants):
        raise Failure(f"race drew {got}, the sampler draws {winners(entrants)}")


def batch_invariant_as_claimed(subject: Subject) -> None:
    """With `batch_invariant`: a row's bits are the same alone and among others."""
    if not subject.manifest.spec.capabilities.get("batch_invariant"):
        raise Skipped("it does not claim batch_invariant; `core config explain` says so to users")
    for activation, weight, label in _served(subject):
        kernel = subject.loaded.linear(weight, activation=activation)
        x = torch.randn(33, weight.shape[1], generator=generator(label))
        out = torch.empty(33, weight.shape[0])
        kernel(x, out)
        for row in (0, 13, 32):
            alone = torch.empty(1, weight.shape[0])
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
    batch_invariant_as_claimed,
)


def _weights(shape: tuple[int, int]) -> Iterator[CanonicalWeight]:
    """One random weight of each canonical format; a new format is one more line."""
    n, k = shape
    random = generator(f"weights {shape}")
    w = torch.randn(n, k, generator=random) * 0.1
    yield from (Dense(w), Dense(w.half()), Dense(w.bfloat16()))
    for bits, group, kind in ((4, 32, "zero"), (4, 32, "minimum"), (8, 32, "zero"), (8, 16, "minimum")):
        if k % group == 0:
            yield _int_groups(shape, bits, group, kind == "minimum", random)


def _int_groups(shape: tuple[int, int], bits: int, group: int, minimum: bool, random: torch.Generator) -> IntGroups:
    n, k = shape
    values = torch.randint(0, 256, (n, k * bits // 8), dtype=torch.uint8, generator=random)
    scale = (torch.rand(n, k // group, generator=random) * 0.01 + 0.001).half()
    least = (torch.randn(n, k // group, generator=random) * 0.05).half() if minimum else None
    return IntGroups(bits, group, values, scale, least, 0 if minimum else 1 << (bits - 1))


def _served(subject: Subject) -> Iterator[tuple[Activation, CanonicalWeight, str]]:
    """Every (activation, weight) that the provider supports."""
    for shape in SHAPES:
        for weight in _weights(shape):
            for activation in ACTIVATIONS:
                attributes = {"group_size": weight.group_size} if isinstance(weight, IntGroups) else {}
                query = KernelQuery("linear", subject.device, weight_format(weight), activation, shape, attributes)
                if not subject.loaded.supports(query):
                    yield activation, weight, f"{weight_format(weight)} {shape}, activation {activation}"


def _compare_linear(kernels: Kernels, activation: Activation, weight: CanonicalWeight, label: str) -> None:
    random = generator(label)
    n, k = weight.shape
    bias = torch.randn(n, generator=random)
    mine = kernels.linear(weight, activation=activation, bias=bias)
    reference = ReferenceKernels().linear(weight, activation=activation, bias=bias)
    tolerance = 2e-5 if activation == "none" and weight_format(weight) != "bfloat16" else 2e-2
    for rows in ROWS:
        wide = torch.randn(rows, k + 8, generator=random)
        x, start = wide[:, :k], torch.randn(rows, n, generator=random)
        for accumulate in (False, True):
            got, expected = (torch.full((rows, n + 4), torch.nan)[:, :n] for _ in range(2))
            if accumulate:
                got.copy_(start)
                expected.copy_(start)
            mine(x, got, accumulate=accumulate)
            reference(x, expected, accumulate=accumulate)
            close(got, expected, tolerance, f"{label}, {rows} rows{', accumulated' if accumulate else ''}")


def _supports(subject: Subject, op: str) -> bool:
    return not subject.loaded.supports(KernelQuery(op, subject.device))


def _rms_norm(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("norm")
    x, weight, out = torch.randn(rows, 96, generator=random), torch.randn(96, generator=random), torch.empty(rows, 96)
    kernels.rms_norm(x, weight, 1e-6, out)
    return [out]


def _rms_norm_heads(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("heads")
    x, weight = torch.randn(rows, 6, 32, generator=random), torch.randn(32, generator=random)
    kernels.rms_norm_heads(x[:, :4], weight, 1e-6)
    return [x]


def _rotary(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("rotary")
    x = torch.randn(rows, 6, 32, generator=random)
    angles = torch.rand(64, 16, generator=random) * 6
    positions = torch.randint(0, 64, (rows,), generator=random)
    kernels.rotary(x[:, :4], x[:, 4:], angles.cos(), angles.sin(), positions)
    return [x]


def _gated(kernels: Kernels, rows: int) -> list[Tensor]:
    x, found = torch.randn(rows, 160, generator=generator("gate")) * 3, []
    for activation in ("silu", "gelu_tanh"):
        out = torch.empty(rows, 80)
        kernels.gated(x, activation, out)
        found.append(out)
    return found


def _add(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("add")
    x, residual = torch.randn(rows, 96, generator=random), torch.randn(rows, 96, generator=random)
    kernels.add(x, residual)
    return [x, residual]


def _scale(kernels: Kernels, rows: int) -> list[Tensor]:
    x = torch.randn(rows, 96, generator=generator("scale"))
    kernels.scale(x, 3.25)
    return [x]


OPERATIONS: dict[str, Callable[[Kernels, int], list[Tensor]]] = {
    "rms_norm": _rms_norm,
    "rms_norm_heads": _rms_norm_heads,
    "rotary": _rotary,
    "gated": _gated,
    "add": _add,
    "scale": _scale,
}
"""How each operation is tried; a new operation is one more row."""
