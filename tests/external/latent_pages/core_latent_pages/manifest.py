"""Manifest of the attention backend `latent_pages`."""

from core.api.reason import Reason
from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Latent layers only."""
    return PluginSpec(
        name="latent_pages",
        summary="latent attention, a page at a time",
        capabilities={"layer_kinds": ["latent"], "devices": ["cpu"], "kv_dtypes": ["float32", "bfloat16"]},
        priority=-10,
    )


@hookimpl
def core_supports(query):
    """Pages of more tokens than that are no pages."""
    if query.block_size > 256:
        return [Reason("block_size", "at most 256", str(query.block_size), "--block-size chooses another")]
    return []


@hookimpl
def core_numerics():
    """Grows when results change."""
    return "latent-pages-1"


@hookimpl
def core_load(context):
    """Build the backend."""
    from core_latent_pages.backend import LatentPages

    return LatentPages()
