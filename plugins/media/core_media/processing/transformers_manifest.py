"""Manifest of the processor `transformers`, which most models have. Torch-free.

Owns: the plugin's description. Called by: `core.plugin`.
"""

from __future__ import annotations

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_media.config import MODALITIES
from core_media.contract import Processor

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="transformers",
        summary="the checkpoint's own processor of transformers",
        capabilities={"modalities": list(MODALITIES)},
    )


@hookimpl
def core_load(context: LoadContext) -> Processor:
    """Build the processor."""
    from core_media.processing.transformers_processor import TransformersProcessor

    return TransformersProcessor(context.options["media"])
