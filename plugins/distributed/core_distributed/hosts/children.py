"""The other ranks of an engine on several hosts: children of this host, and those of other nodes.

Owns: what a failure on any host means, as one answer. Never does: start a rank of another host (its node does).
Called by: the executor.
"""

from __future__ import annotations

from collections.abc import Callable

from core_distributed.children import Children
from core_distributed.hosts.meeting import Meeting
from core_distributed.hosts.nodes import Nodes
from core_distributed.hosts.started import StartedHosts
from core_distributed.layout import Layout


class ChildrenOfHosts(Children):
    """All ranks but the first.

    nodes: the other hosts, all of which have come; owned by this object. started: what has started them, if they are ours.
    """

    def __init__(
        self,
        layout: Layout,
        memory: int,
        slot_bytes: int,
        on_death: Callable[[], None],
        nodes: Nodes,
        meeting: Meeting,
        started: StartedHosts | None = None,
    ) -> None:
        self._layout = layout
        self._nodes = nodes
        self._started = started
        super().__init__(layout, memory, slot_bytes, on_death, 0, meeting)
        nodes.on_death = self.bury
        nodes.begin(meeting, slot_bytes)

    def words(self) -> list[str]:
        """Return what ranks have said about failures since the last call."""
        said = super().words()
        for answer in self._nodes.ask().values():
            said += answer.words
        return said

    def silence(self, rank: int, seconds: float) -> str:
        """Describe a rank that did not answer, and have all ranks write their stacks to the logs of their hosts."""
        answers = self._nodes.ask(stacks=True)
        states = {other: state for answer in answers.values() for other, state in answer.states.items()}
        names = {other: name for answer in answers.values() for other, name in answer.names.items()}
        states |= self.states(stacks=True)
        stopped = [other for other, state in states.items() if state.startswith(("T", "t"))]
        rank = stopped[0] if stopped and rank not in stopped else rank
        host = self._layout.host_of(rank)
        name = names.get(rank) or (f"on node {host}" if host else self.name(rank))
        state = f"its process is {states[rank]}" if rank in states else "its node does not answer either"
        return f"Rank {rank} of {self._size} ({name}) did not answer within {seconds:g} s in step {self.step}; {state}."

    def end(self) -> None:
        """End all ranks."""
        self._nodes.end()
        super().end()
        if self._started is not None:
            self._started.close()
