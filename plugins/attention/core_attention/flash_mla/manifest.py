"""Manifest of the `flash_mla` attention backend. Torch-free.

Owns: the backend's declared capabilities. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util

from core.api.reason import Reason
from core.api.specs import AttentionQuery, LatentSpec
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_attention.triton.limits import NUMERICS, unsupported
from core_platforms.cuda.chips import sm_of
from core_runtime.contracts import LatentBackend

CONTRACT = 1
MODULE = "flash_mla"
SOURCE = "github.com/deepseek-ai/FlashMLA"
SM = 90
"""The one architecture with its kernel for dense decoding."""
LATENT = (512, 64)
"""The numbers of a latent and of a rotated key that its kernels are made for: DeepSeek's."""


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: for Hopper GPUs with the library."""
    return PluginSpec(
        name="flash_mla",
        summary="latent attention: decoding by the library FlashMLA, where it is installed, prompts by Triton",
        capabilities={
            "devices": ["cuda"],
            "layer_kinds": ["latent"],
            "kv_dtypes": ["bfloat16"],
            "block_sizes": [64],
            "padding": True,
            "batch_invariant": False,
        },
        priority=15,
    )


@hookimpl
def core_supports(query: AttentionQuery) -> list[Reason]:
    """Require the installed library and DeepSeek's latent layers on a Hopper GPU."""
    if importlib.util.find_spec(MODULE) is None:
        return [Reason("missing_library", SOURCE, "not installed", f"pip install git+https://{SOURCE}")]
    reasons = unsupported(query)
    sm = sm_of(query.profile)
    if sm and sm != SM:
        reasons.append(Reason("device", f"sm_{SM}", f"sm_{sm}"))
    spec = query.spec
    if isinstance(spec, LatentSpec) and (spec.rank, spec.rope_size) != LATENT:
        reasons.append(
            Reason("head_size", "latents of 512 and keys of 64 numbers", f"{spec.rank} and {spec.rope_size}")
        )
    return reasons


@hookimpl
def core_numerics() -> str:
    """Return the version of the library and of the kernels for prompts."""
    try:
        number = importlib.metadata.version(MODULE.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:  # built in place, without package metadata
        number = "unknown"
    return f"{MODULE}-{number}+{NUMERICS}"


@hookimpl
def core_load(context: LoadContext) -> LatentBackend:
    """Build the backend."""
    from core_attention.flash_mla.backend import FlashMla

    return FlashMla(core_numerics())
