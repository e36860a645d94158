"""The last blocks of a model, where these store no keys and values: its tail. Torch-free.

Owns: which blocks these are, and the setting that leaves rows out of them (`--kv-sharing-fast-prefill`). Never does: compute.
Called by: the configuration (writes the setting), the building of the runner (reads it).
"""

from __future__ import annotations

from typing import Final

from core.api.config import EngineConfig
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.module_spec import ModelSpec

TAIL: Final = "executor.tail"
"""Key of the setting among the arguments of plugins (`PluginChoices.arguments`)."""


def skips_rows(config: EngineConfig) -> bool:
    """Whether the tail computes only the rows of a step whose results are read."""
    return bool(config.plugins.arguments.get(TAIL))


def first_of_tail(spec: ModelSpec) -> int | None:
    """Return the first block from which on none stores keys and values or a state; None: the last block stores some.

    A block that passes something on beside the residual stream ends the search.
    """
    if not isinstance(spec, DecoderSpec):
        return None
    first = len(spec.blocks)
    for index in reversed(range(len(spec.blocks))):
        block = spec.blocks[index]
        passes_on = block.aside or block.keeps_as or block.blends or (block.experts is not None and block.experts.late)
        if passes_on or len(block.mixers) > 1 or not spec.block_heads(index).borrows:
            break
        first = index
    return first if 0 < first < len(spec.blocks) else None
