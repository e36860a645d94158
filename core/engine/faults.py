"""Distinction between a broken engine and bad requests.

Owns: the count of consecutive faults, and the probe, a request that shows whether the engine can still compute. Never does:
repair anything. Called by: the engine core.

A request can never end the engine. After `FAULTS_BEFORE_PROBE` consecutive faults one token of the probe is computed, alone.
When that fails too, executor or scheduler are broken; when it succeeds, the requests were at fault, and counting starts again.
"""

from __future__ import annotations

from core.api.errors import EngineDeadError
from core.api.messages import EngineRequest
from core.api.pooling import Pooling
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepPlan

MAX_IDLE_STEPS = 1000
"""Limit of consecutive steps that plan nothing although requests wait; beyond it the scheduler counts as broken, so that the
engine ends instead of hanging."""

FAULTS_BEFORE_PROBE = 8
"""Consecutive faults (failed steps, broken invariants), without a successful step in between, after which the engine computes
the probe. However many bad requests there are, the probe is none of them."""

MAX_VIOLATIONS = 16
"""Limit of consecutive broken invariants without a request at work: no request ends with them, so they might never end."""


class Faults:
    """Counts consecutive faults of one engine. Every method that counts may raise EngineDeadError.

    probe: the engine's own request; its output has no receiver.

    pooling: pooling of the probe, for an engine that generates no tokens.
    """

    def __init__(self, pooling: Pooling | None = None) -> None:
        params = SamplingParams(max_tokens=1, temperature=0.0)
        self.probe = EngineRequest("core-engine-probe", 0, [0], params, seed=0, pooling=pooling)
        self._num_faults = 0
        self._num_violations = 0
        self._num_idle = 0

    @property
    def wants_probe(self) -> bool:
        """Whether the probe is to be computed next."""
        return self._num_faults >= FAULTS_BEFORE_PROBE

    def went_well(self) -> None:
        """Reset the counts after a successful step that computed something."""
        self._num_faults = 0
        self._num_violations = 0

    def step_failed(self, plan: StepPlan, cause: str, error: Exception) -> None:
        """Count a plan that the executor could not compute. cause: the reason, as text."""
        # The probe runs alone and ends with its first token, so a step that computes it has it among `new`.
        if any(new.request.key == self.probe.key for new in plan.new):
            raise EngineDeadError(
                f"The executor failed in {self._num_faults + 1} steps in a row, the last of which computed one token of "
                f"the engine's own; the last failure was {cause}."
            ) from error
        self._num_faults += 1

    def scheduler_broke(self, guilty: EngineRequest | None, error: Exception) -> None:
        """Count an exception of the scheduler. guilty: the request that it was handling, if any."""
        # A request at work ends with its violation, so such violations end when the bad requests do.
        self._num_violations += guilty is None
        was_probe = guilty is not None and guilty.key == self.probe.key
        if was_probe or self._num_violations >= MAX_VIOLATIONS:
            raise EngineDeadError(
                f"The scheduler broke {self._num_faults + 1} times in a row; the last time it said: {error}"
            ) from error
        self._num_faults += 1

    def moved(self, moves: bool) -> None:
        """Count a planned step. moves: whether it computes something, or a finished one had outputs."""
        self._num_idle = 0 if moves else self._num_idle + 1
        if self._num_idle > MAX_IDLE_STEPS:
            raise EngineDeadError(f"The scheduler planned nothing in {self._num_idle} steps although requests wait.")
