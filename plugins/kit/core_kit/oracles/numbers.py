"""Comparison of tensors, with error messages.

Owns: the form of tolerances and the description of a difference. Never does: choose a tolerance. Called by: the suites.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from core_kit.case import Failure


def generator(seed: str) -> torch.Generator:
    """Return a random generator that is the same in every run."""
    return torch.Generator().manual_seed(zlib.crc32(seed.encode()))


def same_bits(got: Tensor, expected: Tensor, what: str) -> None:
    """Raise Failure unless both have the same bits."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        wanted = f"{expected.dtype} {tuple(expected.shape)}"
        raise Failure(f"{what}: {got.dtype} {tuple(got.shape)}, expected {wanted}")
    if not torch.equal(got, expected):
        differing = int((got != expected).sum())
        raise Failure(f"{what}: {differing} of {got.numel()} values differ, expected equal bits")


def close(got: Tensor, expected: Tensor, tolerance: float, what: str, axis: int | None = None) -> None:
    """Raise Failure when the largest difference exceeds `tolerance` × (1 + the largest expected magnitude).

    axis: along which the largest magnitude is taken; None: over the whole tensor.
    """
    if got.shape != expected.shape:
        raise Failure(f"{what}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}")
    if not bool(torch.isfinite(got.double()).all()):
        raise Failure(f"{what}: holds values that are not finite, or was not written everywhere")
    if expected.numel() == 0:
        return
    size = expected.double().abs()
    largest = size.max() if axis is None else size.amax(axis, keepdim=True)
    limits = tolerance * (1.0 + largest).expand(size.shape)
    apart = (got.double() - expected.double()).abs()
    worst = int((apart / limits).argmax())
    difference = float(apart.flatten()[worst])
    limit = float(limits.flatten()[worst])
    if difference > limit:
        raise Failure(f"{what}: differs by {difference:.3g} from the reference, allowed are {limit:.3g}")


def distance(got: Tensor, expected: Tensor) -> float:
    """Return the relative root-mean-square distance."""
    size = float(expected.double().norm())
    if size == 0.0:
        return float(got.double().norm())
    difference = got.double() - expected.double()
    return float(difference.norm()) / size
