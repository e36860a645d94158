"""The choice of a communicator for a rank.

Owns: `ranks_of`, a worker's place among the ranks. Never does: communicate. Called by: the executor and the other ranks.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from core_distributed.arguments import RanksArguments
from core_distributed.context.backend import ContextBackend
from core_distributed.context.division import Division
from core_distributed.hosts.communicator import SpanningCommunicator, SpanningLink
from core_distributed.hosts.spanning import SpanningGroup
from core_distributed.layout import Group, Groups
from core_platforms.cpu.ranks import SharedLink
from core_runtime.contracts import Communicator, Link, Runtime
from core_runtime.executor.ranks import Ranks
from core_runtime.executor.stage import Stage
from core_runtime.specs.model_part import Part

LEAST_SLOT: Final = 1 << 20


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


class SpanningRanks(Ranks):
    """Ranks of which some are on other hosts."""

    def _open(self, runtime: Runtime) -> Communicator:
        assert isinstance(self.group, SpanningGroup)
        return SpanningCommunicator(self.group)


def ranks_of(groups: Groups, arguments: RanksArguments) -> Ranks:
    """Return a worker's place among the ranks."""
    layout = groups.layout
    share = Part(layout.place_of(groups.rank), layout.tensor, experts=arguments.experts)
    # A rank that has its layers alone sums nothing.
    group = groups.stage or groups.world
    stage = None if layout.stages == 1 else _stage(groups, arguments)
    if isinstance(group, SpanningGroup):
        ranks: Ranks = SpanningRanks(share, group, stage)
    elif arguments.communicator == "native":
        ranks = Ranks(share, group, stage)
    else:
        ranks = GlooRanks(share, group, stage)
        ranks.timeout_s = arguments.timeout_seconds
    if arguments.context > 1:
        ranks.divides_keys = partial(_divided, arguments.context)
    return ranks


def _divided(size: int, backend: Any, communicator: Communicator, longest: int) -> ContextBackend:
    """Return the backend of layers whose keys and values `size` ranks divide. longest: see `ContextBackend`."""
    division = Division(size, communicator.rank, communicator.size)
    return ContextBackend(backend, division, communicator, longest)


def _stage(groups: Groups, arguments: RanksArguments) -> Stage:
    """Return a rank's place in the row of stages, with its ways from and to the neighbours."""
    layout = groups.layout

    def link(group: Group | None) -> Link | None:
        if group is None:
            return None
        if isinstance(group, SpanningGroup):
            return SpanningLink(group)
        if arguments.communicator == "native":
            return SharedLink(group)
        from core_distributed.gloo import GlooLink

        return GlooLink(group, arguments.timeout_seconds)

    return Stage(
        layout.stage_of(groups.rank),
        layout.stages,
        leads=groups.rank == 0,
        before=link(groups.before),
        after=link(groups.after),
        group=groups.stage,
    )
