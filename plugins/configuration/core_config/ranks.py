"""Division of a model over ranks, as far as the configuration needs it.

Owns: the part of a model that a rank holds, the sizes that work, and how many ranks an engine has. Never does: start a rank.
Called by: the memory plan, `LLMEngine`, `core serve`.
"""

from __future__ import annotations

from typing import Final

from core.api.config import EngineConfig
from core.api.errors import UserError
from core_runtime.specs.expert_placement import ExpertPlacement
from core_runtime.specs.model_part import Part
from core_runtime.specs.module_spec import ModelSpec
from core_runtime.specs.stages import Range, stages_of

MOST_TRIED: Final = 64


def ranks_in(engine: EngineConfig) -> int:
    """Return how many processes compute the model of an engine together."""
    own: dict[str, int] = engine.plugins.arguments.get(f"executor.{engine.plugins.executor}") or {}
    return own.get("ranks", 1) * own.get("stages", 1)


def is_launched(engine: EngineConfig) -> bool:
    """Whether a launcher such as torchrun has started the processes that compute the model of an engine together."""
    own: dict[str, bool] = engine.plugins.arguments.get(f"executor.{engine.plugins.executor}") or {}
    return own.get("launched", False)


def stages_in(spec: ModelSpec, count: int) -> list[Range]:
    """Return the blocks of each stage. Raises UserError, with the numbers of stages that work."""
    try:
        return stages_of(spec, count)
    except UserError as error:
        raise UserError(f"--pipeline-parallel-size {count}: {error}.") from error


def part_of(spec: ModelSpec, size: int, experts: ExpertPlacement) -> ModelSpec:
    """Return the part of a model that each of `size` ranks holds. Raises UserError, with the sizes that work."""
    if size == 1:
        return spec
    try:
        return spec.local(Part(0, size, experts=experts))
    except UserError as error:
        sizes = ", ".join(str(other) for other in range(1, MOST_TRIED + 1) if _divides(spec, other, experts))
        raise UserError(f"--tensor-parallel-size {size}: {error}. Sizes that work for this model: {sizes}.") from error


def _divides(spec: ModelSpec, size: int, experts: ExpertPlacement) -> bool:
    try:
        spec.local(Part(0, size, experts=experts))
    except UserError:
        return False
    return True
