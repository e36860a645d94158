"""Manifest of the processor `gguf`, of models with a projector file. Torch-free.

Owns: the plugin's description. Called by: `core.plugin`.
"""

from __future__ import annotations

from core.api.errors import UserError
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_media.config import IMAGE
from core_media.contract import Processor

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="gguf",
        summary="a processor of transformers, built from the keys of a projector file",
        capabilities={"modalities": [IMAGE]},
    )


@hookimpl
def core_load(context: LoadContext) -> Processor:
    """Build the processor. Raises UserError for a model without a projector file."""
    from core_media.processing.transformers_processor import TransformersProcessor

    media = context.options["media"]
    if not media.projector:
        raise UserError(f"'{media.model}' has no projector file; leave --mm-processor out.")
    return TransformersProcessor(media)
