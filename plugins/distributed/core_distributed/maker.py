"""The maker of the executor `mp`.

Owns: the choice between ranks that all have every layer and ranks in stages. Never does: compute. Called by: the manifest.
"""

from __future__ import annotations

from core.api.config import EngineConfig
from core.api.errors import UserError
from core_distributed.arguments import RanksArguments
from core_distributed.executor import RanksExecutor
from core_distributed.stages_executor import StagesExecutor


class RanksMaker:
    """Builds the executor; implements `core.engine.executor.ExecutorMaker`. arguments: the executor's own."""

    def __init__(self, arguments: RanksArguments) -> None:
        self._arguments = arguments

    def build(self, config: EngineConfig) -> RanksExecutor:
        """Start all ranks and read the weights."""
        if config.device != "cpu":
            raise UserError(f"Several ranks compute on cpu alone so far, not on {config.device}; use one rank.")
        if self._arguments.stages > 1:
            return StagesExecutor(config, self._arguments)
        return RanksExecutor(config, self._arguments)
