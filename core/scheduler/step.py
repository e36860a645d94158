"""One step of the engine, from its plan to its result.

Owns: `Step`: the plan, and everything that must be put right when the plan turns out never to have been computed.
Never does: decide or change anything. Called by: the planner (fills it), the scheduler (finishes or fails it), the engine
loop (has it computed).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from core.api.step_plan import StepPlan
from core.scheduler.running import DecodeView
from core.scheduler.sequence import SequenceState


class Chunk(NamedTuple):
    """A run of known tokens of one sequence that a step computes.

    num_tokens: number of tokens.
    completes:  whether they reach the last known token, so that the step samples.
    """

    sequence: SequenceState
    num_tokens: int
    completes: bool


@dataclass(slots=True, eq=False)
class Step:
    """A plan and everything that the scheduler needs until its result is read.

    plan:      the executor's part. Its `removed` and `transfers` count as not received until the step is finished.
    number:    identifies the step: 1, 2, 3, ... in the order of the plans.
    decodes:   the sequences of the plan's first rows.
    chunks:    the sequences of the other rows, and how much of each.
    one_each:  whether each decode computes one token and gets one, and no drafts were ordered.
    num_departures: `num_departures` of the running set when the plan was made; while it is equal, all decodes still run.
    unwritten: blocks that others may share although this step, or an earlier one, has yet to write them.
    begun:     time of planning on the scheduler's clock; 0.0 where steps are not timed.
    ticket:    the executor's handle for it while it is computed; None before and after.
    """

    plan: StepPlan = field(default_factory=StepPlan)
    number: int = 0
    decodes: DecodeView | None = None
    chunks: list[Chunk] = field(default_factory=list)
    one_each: bool = True
    num_departures: int = 0
    unwritten: list[int] = field(default_factory=list)
    begun: float = 0.0
    ticket: object = None

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute and no removal to report to the worker."""
        return not self.plan.total_num_tokens and not self.plan.removed

    @property
    def num_decodes(self) -> int:
        """Number of rows that continue a decode; they come first, the other rows are chunks."""
        return 0 if self.decodes is None else len(self.decodes.slots)

    def sequences(self) -> list[SequenceState]:
        """Return all sequences of the step, in batch order."""
        found: list[SequenceState] = []
        if self.decodes is not None:
            found += self.decodes.sequences
        for chunk in self.chunks:
            found.append(chunk.sequence)
        return found
