"""The Triton kernels that compute what a library does not: few rows, and types that it has no products for.

Owns: how they are built, and the facts of a run that queries to a library's provider name. Never does: choose between both.
Called by: the manifests.
"""

from __future__ import annotations

import dataclasses
from typing import cast

import msgspec
import torch

from core.api.specs import KernelQuery
from core.plugin.hookspecs import LoadContext
from core_kernels.triton import manifest
from core_kernels.triton.compiling.launch import architecture_of
from core_kernels.triton.kernels import TritonKernels


def triton_kernels(context: LoadContext) -> TritonKernels:
    """Build them with the arguments of the provider `triton`. Raises UserError for an unreadable table of tiles."""
    given = None if context.config is None else context.config.plugins.arguments.get("kernels.triton")
    arguments = msgspec.convert(given or {}, manifest.KernelArguments)
    return cast(TritonKernels, manifest.core_load(dataclasses.replace(context, arguments=arguments)))


def facts_of(context: LoadContext) -> dict[str, str]:
    """Return attributes of all queries of a run, those of `core config explain`: the dtype, and the device's profile."""
    return {"dtype": context.dtype, "profile": architecture_of(torch.device(context.device))}


def with_facts(query: KernelQuery, facts: dict[str, str]) -> KernelQuery:
    """Return a query with the facts of its run."""
    return msgspec.structs.replace(query, attributes={**query.attributes, **facts})
