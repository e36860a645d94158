"""The error for a broken invariant.

Owns: `IntegrityError` and the helper that raises it. Never does: repair. Called by: the `check_integrity` functions of
the KV cache and the scheduler, and by operations that would corrupt their state.
"""

from __future__ import annotations

from core.api.errors import CoreError


class IntegrityError(CoreError):
    """An invariant of the block pool, the prefix table or the scheduler does not hold: a defect of the engine.

    invariant: short name of the violated rule, such as `reference_counts`.
    """

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


def require(holds: bool, invariant: str, message: str) -> None:
    """Raise `IntegrityError` for `invariant` unless `holds`. The message is built even when it holds."""
    if not holds:
        raise IntegrityError(invariant, message)
