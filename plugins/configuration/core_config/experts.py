"""The settings of expert parallelism, from their arguments.

Owns: the balance of experts and their placement as arguments ask for them, and the memory of both. Never does: move an expert.
Called by: the rules about experts, the memory plan, explain.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.api.step_limits import StepLimits
from core_config.parallel_cost import plain_bytes
from core_config.stages.settings import Settings
from core_runtime.specs.block_spec import BlockSpec
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.expert_placement import ExpertPlacement, HeldExperts
from core_runtime.specs.module_spec import ModelSpec

OLDER = {
    "eplb_window_size": "window_size",
    "eplb_step_interval": "step_interval",
    "eplb_log_balancedness": "log_balancedness",
    "num_redundant_experts": "num_redundant_experts",
}
"""Older arguments → their keys of --eplb-config."""
DEFAULTS = {
    "window_size": 1000,
    "step_interval": 3000,
    "num_redundant_experts": 0,
    "log_balancedness": False,
    "log_balancedness_interval": 1,
}


def balance_keys(settings: Settings) -> dict[str, Any]:
    """Return the keys of --eplb-config, with defaults; those given under an older name win over nothing else."""
    found = DEFAULTS | {key: value for key, value in settings.mapping("eplb_config").items() if value is not None}
    return found | {key: settings[name] for name, key in OLDER.items() if settings[name] is not None}


def placement_of(settings: Settings) -> ExpertPlacement:
    """Return how the ranks share experts."""
    if not settings["enable_expert_parallel"]:
        return ExpertPlacement()
    moves: bool = settings["enable_eplb"]
    redundant = balance_keys(settings)["num_redundant_experts"] if moves else 0
    return ExpertPlacement(settings["expert_placement_strategy"], redundant, moves)


def copies_bytes(spec: ModelSpec, placement: ExpertPlacement, weights: int, dtype: str) -> int:
    """Return the bytes of redundant experts. weights: bytes of the whole model as the kernels hold it."""
    plain, with_copies = _plain_sizes(spec, placement, dtype)
    return weights * (with_copies - plain) // plain


def bytes_without_copies(spec: ModelSpec, placement: ExpertPlacement, weights: int, dtype: str) -> int:
    """Return the bytes of the whole model. weights: its bytes with redundant experts."""
    plain, with_copies = _plain_sizes(spec, placement, dtype)
    return weights * plain // with_copies


def _plain_sizes(spec: ModelSpec, placement: ExpertPlacement, dtype: str) -> tuple[int, int]:
    """Return the bytes of a model without quantization, without and with its redundant experts."""
    if not placement.redundant or not isinstance(spec, DecoderSpec):
        return 1, 1
    blocks = tuple(_with_copies(block, placement.redundant) for block in spec.blocks)
    return plain_bytes(spec, dtype), plain_bytes(msgspec.structs.replace(spec, blocks=blocks), dtype)


def _with_copies(block: BlockSpec, redundant: int) -> BlockSpec:
    """Return a block whose slots all lie on one rank."""
    if block.experts is None:
        return block
    held = HeldExperts(0, 1, block.experts.count, ExpertPlacement(redundant=redundant))
    return msgspec.structs.replace(block, experts=msgspec.structs.replace(block.experts, held=held))


def outputs_bytes(spec: ModelSpec, placement: ExpertPlacement, limits: StepLimits) -> int:
    """Return the bytes of a rank's buffer for the outputs of all choices; 0 where weighted sums are added up."""
    _, choices = spec.router_widths()
    return 0 if placement.is_ordered else 4 * choices * spec.hidden_size * limits.tokens
