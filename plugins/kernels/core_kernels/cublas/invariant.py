"""Products of cuBLAS whose bits do not depend on how many rows there are.

Owns: the settings that keep cuBLAS from dividing sums, and the provider that uses it for every number of rows. Never
does: arithmetic. Called by: the manifest.

On Hopper and newer, cuBLASLt sums the inputs of an output in one order, whatever the tile, unless it divides them among
several blocks (split-K), for which it needs a workspace. vLLM relies on this too (`batch_invariant.py`, 0.19). Few rows
cost more than with Triton. Products of heads (`bmm`) and of experts have no such promise, and are Triton's.
"""

from __future__ import annotations

import os
from typing import Final

import torch
from torch import Tensor

from core.api.errors import UserError
from core.api.specs import Activation
from core_kernels.cublas.kernels import CublasKernels
from core_runtime.contracts import ExpertsKernel, GatedOperation, HeadsKernel
from core_runtime.weights.experts import Experts

OLDEST: Final = (9, 0)
NO_WORKSPACE: Final = (("CUBLAS_WORKSPACE_CONFIG", ":16:8"), ("CUBLASLT_WORKSPACE_SIZE", "1"))
"""Environment variables that torch reads when it first opens cuBLAS: room for nothing that split-K would store."""


class InvariantKernels(CublasKernels):
    """Dense linear layers of cuBLAS; experts and heads of Triton."""

    def grouped_experts(  # type: ignore[override]
        self, gate_up: Experts, down: Experts, activation: str, *, precision: Activation, gated: GatedOperation
    ) -> ExpertsKernel:
        """Build the experts of a layer, with one weight per side."""
        return self.few.grouped_experts(gate_up, down, activation, precision=precision, gated=gated)

    def heads(self, weight: Tensor, activation: Activation) -> HeadsKernel:
        """Prepare a dense weight [H, N, K], one matrix per head."""
        return self.few.heads(weight, activation)


def forbid_split_k(device: str) -> None:
    """Have this process use cuBLASLt without a workspace. To be called before the first product.

    Without any device, as when kernels are compiled ahead, nothing is computed, and there is nothing to do.
    Raises UserError for a device on which sums may be divided all the same.
    """
    if not torch.cuda.is_available():
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        found = ".".join(map(str, capability))
        raise UserError(
            f"--kernels cublas_invariant needs compute capability 9.0 (Hopper) or newer, got {found} on {device}; leave it "
            "out, and --batch-invariant uses the engine's own products."
        )
    for name, value in NO_WORKSPACE:
        os.environ[name] = value
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = (False, False)  # of narrow sums, of split-K
    matmul.allow_fp16_reduced_precision_reduction = (False, False)
    torch.backends.cuda.preferred_blas_library("cublaslt")
