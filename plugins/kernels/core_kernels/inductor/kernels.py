"""The reference's operations, compiled by torch in the background.

Owns: which form of an operation a call uses. Never does: compile, or wait for the compiler. Called by: `KernelSet`.

The first call of a form requests its compilation. Until that is done, and wherever the result would differ in bits, the
reference computes. Compiled operations come into use at the beginning of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core_kernels.inductor.compiler import Compiler
from core_kernels.inductor.forms import Form, form_of
from core_kernels.inductor.limits import lacking
from core_runtime.layers.reference import ReferenceKernels


class CompiledKernels(ReferenceKernels):
    """Implementation of the `Kernels` contract for a few operations."""

    name = "inductor"

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._reference = ReferenceKernels()
        self._used: dict[Form, Callable[..., None]] = {}

    def supports(self, query: KernelQuery) -> list[Reason]:
        """Return the reasons why an operation is not supported, as the manifest does."""
        return lacking(query)

    def begin_step(self) -> None:
        """Put newly compiled operations into use."""
        ready = self._compiler.ready
        while ready:
            form, operation = ready.popleft()
            self._used[form] = operation

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Compute an RMS norm: the `Kernels` contract."""
        self._call("rms_norm", x, weight, eps, out)

    def gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Apply a gated activation: the `Kernels` contract."""
        self._call("gated", x, activation, out)

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """Rotate q and k in place: the `Kernels` contract."""
        self._call("rotary", q, k, cos, sin, positions)

    def _call(self, operation: str, *arguments: Any) -> None:
        form = form_of(operation, arguments)
        used = self._used.get(form)
        if used is None:
            used = self._used[form] = getattr(self._reference, operation)
            self._compiler.ask(form)
        used(*arguments)
