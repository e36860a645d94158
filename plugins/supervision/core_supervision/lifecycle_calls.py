"""The calls by which clients pause an engine, put it to sleep and give it new weights.

Owns: `LifecycleCalls`: names, arguments and checks of these calls, and what they answer. Never does: change memory, weights or
state itself. Called by: the lifecycle, for each call, with the number of the client that makes it.

A call with mode `wait` has several parts, since requests end only while steps are computed. `pause` with `wait` and a number
(`hold`) begins a hold of that client; `lifecycle` with the number tells whether it still drains. Then the call itself names the
hold, and `let_go` ends it. A client that is gone lets go of all its holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from core.api.errors import UtilityError, nearest
from core.api.weights import MemoryPart
from core.engine.observer import Engine
from core_supervision.engine_state import PARTS
from core_supervision.halt import check_mode
from core_supervision.state_table import ENDED, STILL_RUN, EventName
from core_supervision.state_text import described_holders, told_holders, who_holds

if TYPE_CHECKING:
    from core_supervision.lifecycle import Lifecycle

LEVELS: Final = (1, 2)
LARGEST_HOLD: Final = 1 << 62


class LifecycleCalls:
    """The calls of one client. client: the engine's number of it."""

    def __init__(self, lifecycle: Lifecycle, core: Engine, client: int) -> None:
        self._lifecycle = lifecycle
        self._keeper = lifecycle.keeper
        self._core = core
        self._client = client

    def by_name(self) -> dict[str, Callable[..., Any]]:
        """The calls."""
        return {
            "lifecycle": self.lifecycle,
            "pause": self.pause,
            "keep_pause": self.keep_pause,
            "let_go": self.let_go,
            "resume": self.resume,
            "sleep": self.sleep,
            "wake_up": self.wake_up,
            "update_weights": self.update_weights,
            "start_weight_update": self.start_weight_update,
            "finish_weight_update": self.finish_weight_update,
            "reload_weights": self.reload_weights,
        }

    def lifecycle(self, hold: int | None = None) -> dict[str, Any]:
        """The state as plain values.

        hold: a number that this client gave to `pause`; the answer's `hold` is then `drains` while requests run, `reached`
              once they have ended, `ended` when somebody resumed.

        state:        `running`, `draining`, `paused` or `asleep`, see docs/failures.md.
        is_halted:    nothing is computed, and nothing will be without a further call. While a pause waits for requests that
                      run, it is false.
        holders:      who halts it and since when; `halted_by` the same as a sentence, `told_holders` as the statistics have it.
        is_gathering: whether an update in parts was begun. gathering_lost: why it can only be started again.
        """
        self._lifecycle.note_drained()
        state = self._keeper.state
        gathering = state.gathering
        answer: dict[str, Any] = {
            "state": state.phase,
            "is_halted": self._core.is_halted,
            "is_paused": state.is_paused,
            "is_sleeping": bool(state.missing),
            "sleep_level": self._lifecycle.level,
            "missing": sorted(state.missing),
            "weight_version": state.weights.version,
            "holders": described_holders(state),
            "halted_by": who_holds(state),
            "told_holders": [(holder.reason, holder.since) for holder in told_holders(state)],
            "is_gathering": gathering is not None,
            "gathering_lost": "" if gathering is None else gathering.lost,
        }
        if hold is not None:
            holder = state.hold(self._client, hold)
            answer["hold"] = "ended" if holder is None else "drains" if holder.drains else "reached"
        return answer

    def pause(self, mode: str = "abort", clear_cache: bool = True, hold: int = 0) -> dict[str, Any]:
        """Compute nothing until `resume`; requests that come wait.

        mode: what becomes of those that are there: `abort` ends them, `keep` has them go on later. `wait` has them end first
        and is a hold of this client, see above; it is refused when something else keeps them from ending.
        clear_cache: whether cached prefixes are forgotten, once nothing is computed.
        hold: this client's number of the hold, for `wait`.
        """
        check_mode(mode)
        if isinstance(hold, bool) or not 0 <= hold <= LARGEST_HOLD:
            raise UtilityError(f"hold is {hold!r}; expected a number from 0 to {LARGEST_HOLD}.")
        now = self._lifecycle.clock()
        if mode == "wait":
            self._lifecycle.note_drained()
            drains = self._lifecycle.requests_run
            event: EventName = "wait" if drains else "wait_idle"
            self._keeper.move(event, lambda state: state.waited_for(self._client, hold, now, drains=drains))
            self._lifecycle.note_drained()
        else:
            self._keeper.move("pause", lambda state: state.paused(now))
            if mode == "abort":
                self._core.sequences.end_all()
        if clear_cache and self._core.is_halted:
            self._core.sequences.start_over()
        return self.lifecycle(hold)

    def keep_pause(self, hold: int) -> dict[str, Any]:
        """Make the pause that a hold of this client has reached the operator's, which ends with `resume`."""
        self._check_reached("wait", hold)
        now = self._lifecycle.clock()
        self._keeper.move("keep_pause", lambda state: state.pause_kept(self._client, hold, now))
        return self.lifecycle()

    def let_go(self, hold: int) -> dict[str, Any]:
        """End a hold of this client; nothing happens when it has ended."""
        self._keeper.move("let_go", lambda state: state.let_go(self._client, hold))
        return self.lifecycle()

    def resume(self) -> dict[str, Any]:
        """End all pauses, those of waiting calls too. An engine that sleeps goes on sleeping."""
        self._keeper.move("resume", lambda state: state.resumed())
        return self.lifecycle()

    def sleep(self, level: int = 1, mode: str = "keep", hold: int | None = None) -> dict[str, Any]:
        """Give the memory of weights and cache back until `wake_up`; requests that come wait.

        level: 1: the weights are written to a file first, 2: they are read from the checkpoint again.
        mode: as of `pause`; `wait` only once it has waited. hold: with which it did.
        """
        self._lifecycle.sleeping()
        if level not in LEVELS or isinstance(level, bool):
            raise UtilityError(f"sleep level is {level!r}; expected 1 or 2. To compute nothing for a while, pause.")
        check_mode(mode)
        if self._keeper.state.present:
            self._check_reached(mode, hold)
            self._lifecycle.give_back(level, self._lifecycle.clock(), ends_requests=mode == "abort")
        return self.lifecycle()

    def wake_up(self, tags: Sequence[str] | None = None) -> dict[str, Any]:
        """Bring memory back, all of it or that which the tags name: `weights`, `kv_cache`. Computes once all is there."""
        wanted: list[MemoryPart] = []
        for part in PARTS if tags is None else tags:
            if part not in PARTS:
                raise UtilityError(f"tag {part!r} is unknown; expected weights or kv_cache.{nearest(str(part), PARTS)}")
            wanted.append(part)
        if self._keeper.state.missing:
            self._lifecycle.bring_back(wanted)
        return self.lifecycle()

    def update_weights(self, update: dict[str, Any], mode: str = "keep", hold: int | None = None) -> dict[str, Any]:
        """Take new weights, at once, or with others when an update was begun.

        update: the fields of `WeightUpdate`.
        mode: as of `sleep`, for requests that are there; those that go on do so with the new weights. hold: as of `sleep`.
        Raises UtilityError when they do not fit; then nothing has changed.
        """
        check_mode(mode)
        self._check_reached(mode, hold)
        self._lifecycle.updates.take(update, mode)
        return self.lifecycle()

    def start_weight_update(self) -> dict[str, Any]:
        """Begin to gather updates, which `finish_weight_update` applies together. One that was begun before is dropped."""
        self._lifecycle.updates.start(self._client)
        return self.lifecycle()

    def finish_weight_update(
        self, weight_version: str | None = None, mode: str = "keep", hold: int | None = None
    ) -> dict[str, Any]:
        """Apply what was gathered. mode, hold: as of `update_weights`."""
        check_mode(mode)
        self._check_reached(mode, hold)
        self._lifecycle.updates.finish(weight_version, mode)
        return self.lifecycle()

    def reload_weights(self) -> dict[str, Any]:
        """Read the weights again, as their files are now."""
        self._lifecycle.updates.reload()
        return self.lifecycle()

    def _check_reached(self, mode: str, hold: int | None) -> None:
        """Raise UtilityError while requests run that a call with mode `wait` waits for, or when its hold was ended."""
        if mode != "wait":
            return
        self._lifecycle.note_drained()
        if hold is not None and self._keeper.state.hold(self._client, hold) is None:
            raise UtilityError(ENDED)
        if self._lifecycle.requests_run:
            raise UtilityError(STILL_RUN)
