"""When an engine is broken, and not merely met by bad requests.

Owns: what goes wrong in a row, and the request that the engine computes to find out whether it still can. Never does:
mend anything. Called by: the engine core.

A request can never end the engine. After `FAULTS_BEFORE_PROBE` faults in a row one token of a request of the engine's own
is computed, alone: when that fails too, executor or scheduler are broken; when it succeeds, the requests were at fault,
and counting begins anew.
"""

from __future__ import annotations

from core.api.errors import EngineDeadError
from core.api.messages import EngineRequest
from core.api.pooling import Pooling
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepPlan

MAX_IDLE_STEPS = 1000
"""Steps in a row that may plan nothing although requests wait; more is a fault of the scheduler, not a reason to hang."""

FAULTS_BEFORE_PROBE = 8
"""Faults in a row (steps that failed, broken invariants), without a step in between that went well, after which the engine
computes a request of its own. However many bad requests come, that one is not at fault."""

MAX_VIOLATIONS = 16
"""Broken invariants in a row that can be blamed on no request, so that none ends with them: the scheduler is broken."""


class Faults:
    """Counts in a row. Every method that counts may raise EngineDeadError.

    probe: the engine's own request; nobody waits for its output.

    pooling: of the probe, where the engine has no tokens to give.
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
        """A step that computed something was finished."""
        self._num_faults = 0
        self._num_violations = 0

    def step_failed(self, plan: StepPlan, cause: str, error: Exception) -> None:
        """The executor could not compute a plan. cause: why, in words."""
        if any(new.request.key == self.probe.key for new in plan.new):
            raise EngineDeadError(
                f"The executor failed in {self._num_faults + 1} steps in a row, the last of which computed one token of "
                f"the engine's own; the last failure was {cause}."
            ) from error
        self._num_faults += 1

    def scheduler_broke(self, guilty: EngineRequest | None, error: Exception) -> None:
        """The scheduler raised `error`. guilty: the request that it was at work on, if any."""
        self._num_violations += guilty is None
        was_probe = guilty is not None and guilty.key == self.probe.key
        if was_probe or self._num_violations >= MAX_VIOLATIONS:
            raise EngineDeadError(
                f"The scheduler broke {self._num_faults + 1} times in a row; the last time it said: {error}"
            ) from error
        self._num_faults += 1

    def moved(self, moves: bool) -> None:
        """A step was planned. moves: whether it, or what was finished meanwhile, brings anybody further."""
        self._num_idle = 0 if moves else self._num_idle + 1
        if self._num_idle > MAX_IDLE_STEPS:
            raise EngineDeadError(f"The scheduler planned nothing in {self._num_idle} steps although requests wait.")
