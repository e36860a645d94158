"""Solar: a llama some of whose layers read a blend of the residual stream and that of an earlier layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import Family
from core_runtime.specs.decoder_spec import DecoderSpec

KEEPS: Final = {"first": "bskcn_1", "second": "bskcn_2"}
"""Kept stream → key with the layers at whose entry it is kept."""
BLENDS: Final = {"first": "bskcn_3", "second": "bskcn_4"}
"""Kept stream → key with the layers whose input it is blended with."""


def blended(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set the layers that keep the residual stream, and those that read a blend of it.

    The second number of `bskcn_tv` is the share of the kept stream; the first one is that of training.
    """
    config = configuration(hf_config)
    shares = config.list_of("bskcn_tv", float, 2)
    if not shares or not 0 <= shares[1] <= 1:
        config.fail("bskcn_tv", shares, "two numbers from 0 to 1")
    keeps = {name: _layers(config, key, len(spec.blocks)) for name, key in KEEPS.items()}
    blends = {name: _layers(config, key, len(spec.blocks)) for name, key in BLENDS.items()}
    for name, key in BLENDS.items():
        first = min(keeps[name], default=len(spec.blocks))
        if any(index < first for index in blends[name]):
            config.fail(key, sorted(blends[name]), f"layers from the first of {KEEPS[name]} on, {sorted(keeps[name])}")
    blocks = []
    for index, block in enumerate(spec.blocks):
        kept = tuple(name for name in keeps if index in keeps[name])
        mixed = tuple((name, shares[1]) for name in blends if index in blends[name])
        blocks.append(msgspec.structs.replace(block, keeps_as=kept, blends=mixed))
    return msgspec.structs.replace(spec, blocks=tuple(blocks))


def _layers(config: Configuration, key: str, count: int) -> set[int]:
    """Return the layers that a key lists. Raises UserError for one that the model does not have."""
    layers = config.list_of(key, int)
    if any(not 0 <= index < count for index in layers):
        config.fail(key, layers, f"numbers of layers, 0 to {count - 1}")
    return set(layers)


ROWS = (
    Family(
        name="solar",
        model_types=("solar",),
        architectures=("SolarForCausalLM",),
        neutral={"sliding_window": "every layer sees everything"},
        windowed="use_sliding_window",
        adjust=blended,
    ),
)
