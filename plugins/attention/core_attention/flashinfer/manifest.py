"""Manifest of the `flashinfer` attention backend. Torch-free.

Owns: the backend's declared capabilities. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util

from core.api.reason import Reason
from core.api.specs import AttentionQuery, LatentSpec
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_attention.invariant import Arguments
from core_attention.paged_limits import of_one_size
from core_platforms.cuda.chips import sm_of
from core_runtime.contracts import AttentionBackend

CONTRACT = 1
MODULE = "flashinfer"
PACKAGE = "flashinfer-python"
LEAST_SM = 75
LATENT = (512, 64)
"""The numbers of a latent and of a rotated key that its kernels are made for: DeepSeek's."""
LATENT_VERSION = (0, 7)
"""The first version known to have `MLAPlanMetadata`."""


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: for NVIDIA GPUs with the library. A step's plan is made on the host, also for recordings."""
    return PluginSpec(
        name="flashinfer",
        summary="paged attention by the library FlashInfer, where it is installed",
        capabilities={
            "devices": ["cuda"],
            "layer_kinds": ["full", "sliding", "latent"],
            "kv_dtypes": ["bfloat16", "float16"],
            "head_sizes": [64, 128, 256],
            "window": True,
            "cap": True,
            "padding": True,
            "batch_invariant": False,
            "invariant_on_request": ["full", "sliding"],
        },
        arguments=Arguments,
        priority=10,
    )


@hookimpl
def core_supports(query: AttentionQuery) -> list[Reason]:
    """Require the installed library and a layer that fits it."""
    if importlib.util.find_spec(MODULE) is None:
        return [Reason("missing_library", PACKAGE, "not installed", f"pip install {PACKAGE}")]
    reasons = of_one_size(query)
    sm = sm_of(query.profile)
    if sm and sm < LEAST_SM:
        reasons.append(Reason("device", f"sm_{LEAST_SM} or newer", f"sm_{sm}"))
    if isinstance(query.spec, LatentSpec):
        reasons += _latent_reasons(query.spec)
    if query.block_size > 128:
        reasons.append(Reason("block_size", "at most 128", str(query.block_size), "--block-size chooses another"))
    return reasons


def _latent_reasons(spec: LatentSpec) -> list[Reason]:
    """Return reasons against latent layers."""
    reasons = []
    if (spec.rank, spec.rope_size) != LATENT:
        reasons.append(
            Reason("head_size", "latents of 512 and keys of 64 numbers", f"{spec.rank} and {spec.rope_size}")
        )
    number = _version()
    if number is not None and tuple(map(int, number.split(".")[:2])) < LATENT_VERSION:
        needed = ".".join(map(str, LATENT_VERSION))
        reasons.append(Reason("version", f"{PACKAGE} {needed} or newer", number, f"pip install --upgrade {PACKAGE}"))
    return reasons


def _version() -> str | None:
    """Return the library's version; None without package metadata, as when it was built in place."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


@hookimpl
def core_numerics() -> str:
    """Return the library's version."""
    return f"flashinfer-{_version() or 'unknown'}"


@hookimpl
def core_load(context: LoadContext) -> AttentionBackend:
    """Build the backend."""
    from core_attention.flashinfer.backend import FlashInfer

    own = context.arguments or Arguments()
    return FlashInfer(core_numerics(), invariant=own.invariant)
