"""The choice of a communicator for a rank.

Owns: `Group`, the group of an engine's ranks; `ranks_of`. Never does: communicate. Called by: the executor and the other ranks.
"""

from __future__ import annotations

from typing import Final

from core_distributed.arguments import RanksArguments
from core_platforms.cpu.ranks import SharedGroup
from core_runtime.contracts import Communicator, Runtime
from core_runtime.executor.ranks import Ranks
from core_runtime.specs.model_part import Part

LEAST_SLOT: Final = 1 << 20

Group = SharedGroup


def slot_bytes(vocab_size: int, size: int) -> int:
    """Return the bytes of a rank's slot: a row of its logits fits."""
    widest = -(-vocab_size // size)
    return max(LEAST_SLOT, 4 * widest + 4096)


class GlooRanks(Ranks):
    """Ranks that exchange tensors over gloo. timeout_s: how long one may be silent."""

    timeout_s: float

    def _open(self, runtime: Runtime) -> Communicator:
        from core_distributed.gloo import GlooCommunicator

        return GlooCommunicator(self.group, self.timeout_s)


def ranks_of(group: SharedGroup, arguments: RanksArguments) -> Ranks:
    """Return a worker's place in a group."""
    part = Part(group.rank, group.size, experts=arguments.experts)
    if arguments.communicator == "native":
        return Ranks(part, group)
    ranks = GlooRanks(part, group)
    ranks.timeout_s = arguments.timeout_seconds
    return ranks
