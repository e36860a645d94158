"""An executor that audits the step which the observer has chosen.

Owns: `AuditedExecutor`: the order of step and audit, and the error that fails a step with a difference. Never does: choose.
Called by: the step queue, in place of the executor itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from core.api.kv_transfer import KVTransfers, Page
from core.api.step_plan import StepPlan, StepResult
from core.engine.executor import Executor
from core_observers.engine.audit.row import AuditedRow, Difference, compute, difference, keep


class AuditMismatchError(Exception):
    """A row that was computed again alone is not what its step computed."""


class AuditedExecutor:
    """An executor around another one.

    row: the row of the next step that is audited; None: the next step is not. used: slots with a sequence.
    seconds, audit_seconds: of all steps, and of their audits. last_seconds: of the last step.
    on_difference: called with row and difference before the step fails. on_clean: called after an audit without one.
    """

    def __init__(
        self, executor: Executor, on_difference: Callable[[AuditedRow, Difference], None], on_clean: Callable[[], None]
    ) -> None:
        self.row: AuditedRow | None = None
        self.used: set[int] = set()
        self.seconds = 0.0
        self.audit_seconds = 0.0
        self.last_seconds = 0.0
        self._executor = executor
        self._on_difference = on_difference
        self._on_clean = on_clean
        self._is_interrupted = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._executor, name)

    def charge(self, share: float) -> None:
        """Count a share of the last step as an audit."""
        self.seconds -= share * self.last_seconds
        self.audit_seconds += share * self.last_seconds

    def read(self, block_ids: list[int]) -> list[Page]:
        """Return the bytes of blocks, between two steps. It counts as an audit."""
        begin = time.perf_counter()
        pages = self._executor.execute(StepPlan(transfers=KVTransfers(0, block_ids, []))).pages
        assert pages is not None, "the executor saves pages, or the observer would not audit"
        self._is_interrupted = True
        self.audit_seconds += time.perf_counter() - begin
        return list(pages)

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a step, and audit it if a row is chosen. Raises AuditMismatchError, and what the executor raises."""
        begin = time.perf_counter()
        if self._is_interrupted and plan.total_num_tokens:
            # The audit was a step in between, so the batch is not that of the step before, whatever the plan says.
            plan.same_batch = False
            self._is_interrupted = False
        if plan.removed or plan.new:
            self.used.difference_update(plan.removed)
            self.used.update(new.slot for new in plan.new)
        row = self.row
        if row is None or not plan.total_num_tokens:
            result = self._executor.execute(plan)
            self.last_seconds = time.perf_counter() - begin
            self.seconds += self.last_seconds
            return result
        self.row = None
        keep(self._executor, row)
        kept = time.perf_counter()
        result = self._executor.execute(plan)
        served = time.perf_counter()
        self.last_seconds = served - kept
        self.seconds += self.last_seconds
        self._is_interrupted = True
        alone, pages, own_pages = compute(self._executor, row)
        found = difference(row, result, alone, pages, own_pages)
        self.audit_seconds += time.perf_counter() - served + (kept - begin)
        if found is None:
            self._on_clean()
            return result
        self._on_difference(row, found)
        raise AuditMismatchError(
            f"an audit found another {found.kind} for a row of the step when it was computed again alone"
        )
