"""What the configuration says about adapters, as the worker uses it.

Owns: these translations. Never does: read an adapter. Called by: the worker, at the start.
"""

from __future__ import annotations

from core.api.adapters import AdaptersConfig
from core.api.errors import UserError
from core_runtime.executor.adapters.placed import PlacedAdapters
from core_runtime.executor.reloading.checkpoint import Checkpoint
from core_runtime.models.adapters.fitting import Fitting
from core_runtime.models.tensors.packing import DTYPES
from core_runtime.specs.decoder_spec import DecoderSpec


def placed_adapters(config: AdaptersConfig, dtype: str) -> PlacedAdapters:
    """Return the empty places of adapters. dtype: the model's. Raises UserError."""
    chosen = dtype if config.lora_dtype == "auto" else config.lora_dtype
    if chosen == "float16":
        raise UserError("Adapters are computed in bfloat16 or float32, not in float16; choose one with --lora-dtype.")
    return PlacedAdapters(config.max_cpu_loras, config.max_lora_rank, DTYPES[chosen])


def fitting_of(checkpoint: Checkpoint, config: AdaptersConfig) -> Fitting:
    """Return the fitting of adapters to the model of a checkpoint. Raises UserError."""
    if not isinstance(checkpoint.spec, DecoderSpec) or checkpoint.names is None or checkpoint.names_of is None:
        raise UserError("--enable-lora: the layers of transformers take no adapters; leave it out.")
    return Fitting(checkpoint.spec, checkpoint.names, checkpoint.names_of, config.max_lora_rank, config.target_modules)
