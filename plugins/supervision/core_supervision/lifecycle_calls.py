"""The calls by which clients pause an engine, put it to sleep and give it new weights.

Owns: `LifecycleCalls`: names, arguments, checks and results of these calls. Never does: change memory, weights or state
itself. Called by: the lifecycle, for each call, with the number of the calling client.

A call with mode `wait` has several parts, since requests end only while steps are computed. `pause` with `wait` and a number
(`hold`) begins a hold of that client; `lifecycle` with the number reports whether it still drains. Then the call itself names
the hold, and `let_go` ends it. All holds of a client end when it is gone.
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
from core_supervision.state_text import described_holders, holders_sentence, reported_holders

if TYPE_CHECKING:
    from core_supervision.lifecycle import Lifecycle

LEVELS: Final = (1, 2)
LARGEST_HOLD: Final = 1 << 62


class LifecycleCalls:
    """The lifecycle calls of one client. client: its number."""

    def __init__(self, lifecycle: Lifecycle, core: Engine, client: int) -> None:
        self._lifecycle = lifecycle
        self._keeper = lifecycle.keeper
        self._core = core
        self._client = client

    def by_name(self) -> dict[str, Callable[..., Any]]:
        """Return the calls by name."""
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
        """Return the state as plain values.

        hold: a number that this client passed to `pause`; the result's `hold` is then `drains` while requests run, `reached`
              once they have ended, `ended` after a `resume`.

        state:        `running`, `draining`, `paused` or `asleep`, see docs/failures.md.
        is_halted:    whether nothing is computed until a further call. It is false while a pause waits for running requests.
        holders:      reasons of the halt, with owner and time; `halted_by` the same as a sentence, `reported_holders` as in the
                      statistics.
        is_gathering: whether an update in parts has begun. gathering_lost: why it can only be started again.
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
            "halted_by": holders_sentence(state),
            "reported_holders": [(holder.reason, holder.since) for holder in reported_holders(state)],
            "is_gathering": gathering is not None,
            "gathering_lost": "" if gathering is None else gathering.lost,
        }
        if hold is not None:
            holder = state.hold(self._client, hold)
            answer["hold"] = "ended" if holder is None else "drains" if holder.drains else "reached"
        return answer

    def pause(self, mode: str = "abort", clear_cache: bool = True, hold: int = 0) -> dict[str, Any]:
        """Pause the engine until `resume`; new requests wait.

        mode: handling of present requests: `abort` ends them, `keep` continues them later. `wait` lets them end first and is a
        hold of this client, see above; it is refused when something else keeps them from ending.
        clear_cache: whether cached prefixes are dropped, once nothing is computed.
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
        """Turn a reached hold of this client into a pause of the operator, which ends with `resume`."""
        self._check_reached("wait", hold)
        now = self._lifecycle.clock()
        self._keeper.move("keep_pause", lambda state: state.pause_kept(self._client, hold, now))
        return self.lifecycle()

    def let_go(self, hold: int) -> dict[str, Any]:
        """End a hold of this client; does nothing when it has ended."""
        self._keeper.move("let_go", lambda state: state.let_go(self._client, hold))
        return self.lifecycle()

    def resume(self) -> dict[str, Any]:
        """End all pauses, including those of waiting calls. A sleeping engine stays asleep."""
        self._keeper.move("resume", lambda state: state.resumed())
        return self.lifecycle()

    def sleep(self, level: int = 1, mode: str = "keep", hold: int | None = None) -> dict[str, Any]:
        """Release the memory of weights and cache until `wake_up`; new requests wait.

        level: 1: the weights are written to a file first, 2: they are read from the checkpoint again.
        mode: as for `pause`; `wait` only after a hold has been reached. hold: number of that hold.
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
        """Restore memory, all of it or the parts in `tags`: `weights`, `kv_cache`. Steps are computed once all is present."""
        wanted: list[MemoryPart] = []
        for part in PARTS if tags is None else tags:
            if part not in PARTS:
                raise UtilityError(f"tag {part!r} is unknown; expected weights or kv_cache.{nearest(str(part), PARTS)}")
            wanted.append(part)
        if self._keeper.state.missing:
            self._lifecycle.bring_back(wanted)
        return self.lifecycle()

    def update_weights(self, update: dict[str, Any], mode: str = "keep", hold: int | None = None) -> dict[str, Any]:
        """Apply new weights at once, or gather them when an update has begun.

        update: the fields of `WeightUpdate`.
        mode: as for `sleep`, for present requests; those that continue use the new weights. hold: as for `sleep`.
        Raises UtilityError when the weights do not fit; then nothing has changed.
        """
        check_mode(mode)
        self._check_reached(mode, hold)
        self._lifecycle.updates.take(update, mode)
        return self.lifecycle()

    def start_weight_update(self) -> dict[str, Any]:
        """Begin to gather updates, which `finish_weight_update` applies together. An earlier unfinished one is dropped."""
        self._lifecycle.updates.start(self._client)
        return self.lifecycle()

    def finish_weight_update(
        self, weight_version: str | None = None, mode: str = "keep", hold: int | None = None
    ) -> dict[str, Any]:
        """Apply the gathered updates. mode, hold: as for `update_weights`."""
        check_mode(mode)
        self._check_reached(mode, hold)
        self._lifecycle.updates.finish(weight_version, mode)
        return self.lifecycle()

    def reload_weights(self) -> dict[str, Any]:
        """Read the weights again from their present files."""
        self._lifecycle.updates.reload()
        return self.lifecycle()

    def _check_reached(self, mode: str, hold: int | None) -> None:
        """Raise UtilityError while requests run for which a call with mode `wait` waits, or when its hold was ended."""
        if mode != "wait":
            return
        self._lifecycle.note_drained()
        if hold is not None and self._keeper.state.hold(self._client, hold) is None:
            raise UtilityError(ENDED)
        if self._lifecycle.requests_run:
            raise UtilityError(STILL_RUN)
