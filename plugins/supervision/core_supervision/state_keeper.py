"""Keeper of an engine's state, the only place where it changes.

Owns: `StateKeeper`: the current state, the check of each event against the table, and the order of a change: check, write for
the next engine, adopt, report. Never does: touch memory or weights. Called by: the lifecycle and its weight updates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from core.api.errors import EngineDeadError, UtilityError
from core.api.weights import WeightsState
from core_supervision.engine_state import EngineState
from core_supervision.state_table import TABLE, EventName
from core_supervision.state_text import holders_sentence

logger = logging.getLogger(__name__)


class StateStorage(Protocol):
    """Memory from which the next engine reads the state."""

    def write(self, state: EngineState) -> None:
        """Store a record, completely or not at all. Raises OSError."""
        ...


class StateKeeper:
    """The state of one engine, owned by its lifecycle.

    state:    the present state.
    recorded: the state that the next engine would read. It is older than `state` while the record cannot be written.

    storage:   memory for the record.
    on_change: called after each change with the new state.
    """

    def __init__(self, state: EngineState, storage: StateStorage, on_change: Callable[[EngineState], None]) -> None:
        self.state = state
        self.recorded = state
        self._storage = storage
        self._on_change = on_change

    @property
    def is_recorded(self) -> bool:
        """Whether the next engine would read the present state."""
        return self.recorded is self.state

    def record_again(self) -> None:
        """Write the present state if that failed when it was adopted; a further failure leaves the older record."""
        if self.is_recorded:
            return
        try:
            self._storage.write(self.state)
        except OSError:
            return  # logged when the state was adopted
        self.recorded = self.state
        logger.info("The state of the engine is recorded for the next one again.")

    def take_over(self, before: EngineState, weights: WeightsState) -> None:
        """Start from the state `before`, in which the previous engine died.

        weights: weights with which this engine was started.
        """
        self.state = self.recorded = before
        self.move("died", lambda state: state.after_death(weights))
        self._on_change(self.state)

    def check(self, event: EventName) -> None:
        """Raise UtilityError when an event is refused in the present phase."""
        cell = TABLE[event].cells[self.state.phase]
        if isinstance(cell, str):
            raise UtilityError(cell.replace("{who}", holders_sentence(self.state)))

    def move(self, event: EventName, change: Callable[[EngineState], EngineState]) -> None:
        """Apply an event.

        change: function from the present state to the next.
        Raises UtilityError when the table refuses the event, or when an intent cannot be recorded; then nothing has changed.
        Raises EngineDeadError for a state that the table does not allow: a defect, after which no statement about cached keys
        and values holds.
        """
        self.check(event)
        row = TABLE[event]
        before = self.state
        after = change(before)
        if after.phase not in row.cells[before.phase]:
            raise EngineDeadError(f"The engine's state broke: {event} led from {before.phase} to {after.phase}.")
        if after == before:
            return
        # Recorded before it takes effect: an engine that dies in between has promised nothing that its successor forgets.
        self._record(event, after, is_intent=row.is_intent)
        self.state = after
        self._on_change(after)

    def _record(self, event: EventName, state: EngineState, *, is_intent: bool) -> None:
        try:
            self._storage.write(state)
        except OSError as error:
            if is_intent:
                raise UtilityError(
                    f"There is no memory to note {event} for the next engine ({error.strerror}); nothing has changed."
                ) from error
            logger.error("The next engine will not know of %s until it can be recorded: %s.", event, error.strerror)
        else:
            self.recorded = state
