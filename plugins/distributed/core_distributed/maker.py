"""The maker of the executor `mp`, which makes those of Ray too.

Owns: the choice between ranks that all have every layer and ranks in stages. Never does: compute. Called by: the manifest.
"""

from __future__ import annotations

from core.api.config import EngineConfig
from core.api.errors import UserError
from core_distributed.arguments import RanksArguments
from core_distributed.executor import RanksExecutor
from core_distributed.hosts.started import StartedHosts
from core_distributed.stages_executor import StagesExecutor


class RanksMaker:
    """Builds the executor; implements `core.engine.executor.ExecutorMaker`.

    arguments: the executor's own. started: the other hosts, if the engine starts them.
    """

    def __init__(self, arguments: RanksArguments, started: StartedHosts | None = None) -> None:
        self._arguments = arguments
        self._started = started

    def build(self, config: EngineConfig) -> RanksExecutor:
        """Start all ranks and read the weights."""
        if config.device != "cpu":
            raise UserError(f"Several ranks compute on cpu alone so far, not on {config.device}; use one rank.")
        if self._arguments.launched:
            raise UserError(
                "--distributed-executor-backend external_launcher: only `core serve` and LLM meet the ranks that a launcher "
                "has started; leave it out here."
            )
        if self._arguments.stages > 1:
            return StagesExecutor(config, self._arguments, self._started)
        return RanksExecutor(config, self._arguments, self._started)
