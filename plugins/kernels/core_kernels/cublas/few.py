"""The Triton kernels that compute what cuBLAS does not: few rows, and types that it has no products for.

Owns: how they are built. Never does: choose between both. Called by: the manifests.
"""

from __future__ import annotations

import dataclasses
from typing import cast

import msgspec

from core.plugin.hookspecs import LoadContext
from core_kernels.triton import manifest
from core_kernels.triton.kernels import TritonKernels


def triton_kernels(context: LoadContext) -> TritonKernels:
    """Build them with the arguments of the provider `triton`. Raises UserError for an unreadable table of tiles."""
    given = None if context.config is None else context.config.plugins.arguments.get("kernels.triton")
    arguments = msgspec.convert(given or {}, manifest.KernelArguments)
    return cast(TritonKernels, manifest.core_load(dataclasses.replace(context, arguments=arguments)))
