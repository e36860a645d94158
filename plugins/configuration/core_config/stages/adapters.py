"""Bytes of resident adapters, planned from shapes alone.

Owns: the size of the largest adapter that an engine accepts. Never does: open an adapter. Called by: the stage of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from core.api.specs import LayerSpec
from core_config.stages.chosen import Chosen
from core_config.stages.memory import ITEM_BYTES
from core_config.stages.settings import Settings
from core_runtime.models.adapters.whole_modules import whole_modules
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.module_spec import ModelSpec

MATRIX: Final = 2
"""Dimensions of a matrix."""


def planned_adapter(settings: Settings, chosen: Chosen, spec: ModelSpec, part: ModelSpec | None = None) -> int:
    """Return the bytes of an adapter of the largest rank on all matrices of blocks that it may change; 0 without adapters.

    Kernels that pad ranks and outputs declare to which multiples. Of matrices within recurrences an adapter has whole ones,
    in float32, whose rows ranks divide.
    part: the part of the model that each of several ranks holds, whose bytes are added up; None: there is one rank.
    """
    if not settings["enable_lora"] or not isinstance(spec, DecoderSpec):
        return 0
    ranks, outputs = _multiples(chosen)
    dtype = settings["dtype"] if settings["lora_dtype"] == "auto" else settings["lora_dtype"]
    targets = settings["lora_target_modules"] or ()
    sizes = settings["max_lora_rank"], ranks, outputs
    total = 0
    if isinstance(part, DecoderSpec) and settings["tensor_parallel_size"] > 1:
        held = sum(_divided_numbers(spec, part, index, targets, sizes) for index in range(len(spec.blocks)))
        total = settings["tensor_parallel_size"] * held
    else:
        for index in range(len(spec.blocks)):
            for parts in spec.fused_linears(index):
                total += _layer_numbers(_allowed(parts, targets), *sizes)
    whole = [
        state for state in whole_modules(spec) if len(state.shape) == MATRIX and _is_allowed(state.module, targets)
    ]
    return total * ITEM_BYTES[dtype] + sum(math.prod(state.shape) for state in whole) * ITEM_BYTES["float32"]


def _multiples(chosen: Chosen) -> tuple[int, int]:
    """Return the multiples to which the chosen kernels pad ranks and outputs."""
    kernels = chosen.stages.get("kernels")
    providers = [] if kernels is None else [manifest.spec.capabilities for manifest in kernels.manifests]
    for one in providers:
        if "rank_multiple" in one:
            return int(one["rank_multiple"]), int(one.get("row_multiple", 1))
    return 1, 1


def _divided_numbers(
    spec: DecoderSpec, part: DecoderSpec, index: int, targets: Sequence[str], sizes: tuple[int, int, int]
) -> int:
    """Return the numbers that one of several ranks holds for a block.

    Where ranks divide the inputs, two further matrices copy A x out of the sum and into it; see `DividedTable`.
    """
    whole = spec.block_linears(index)
    rank, ranks, outputs = sizes
    experts = [side for expert in part.expert_linears(index) for side in (expert.gate_up, expert.down)]
    total = sum(_layer_numbers(_allowed(parts, targets), *sizes) for parts in experts)
    for role, parts in part.block_linears(index).items():
        wanted = _allowed(parts, targets)
        total += _layer_numbers(wanted, *sizes)
        if wanted and parts[0].shape[-1] < whole[role][0].shape[-1]:
            width = rank * len(parts)
            total += len(wanted) * (
                math.ceil(rank / ranks) * ranks * width + math.ceil(rank / outputs) * outputs * rank
            )
    return total


def _allowed(parts: Sequence[LayerSpec], targets: Sequence[str]) -> list[LayerSpec]:
    """Return the parts that `--lora-target-modules` names; all without it."""
    return [part for part in parts if _is_allowed(part.name, targets)]


def _is_allowed(module: str, targets: Sequence[str]) -> bool:
    return not targets or any(f".{module}".endswith(f".{one}") for one in targets)


def _layer_numbers(parts: Sequence[LayerSpec], rank: int, ranks: int, outputs: int) -> int:
    """Return the numbers of A and B in a layer. ranks, outputs: multiples to which they are padded."""
    if not parts:
        return 0
    a = math.ceil(rank * len(parts) / ranks) * ranks * parts[0].shape[-1]
    b = sum(math.ceil(part.shape[-2] / outputs) * outputs * rank for part in parts)
    return a + b
