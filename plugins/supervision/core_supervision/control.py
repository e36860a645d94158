"""Control of an engine from asyncio: pause, sleep, wake-up and new weights.

Owns: `EngineControl`: the calls, and waiting for requests that must end first. Never does: execute a call (the engine's
lifecycle does). Called by: `AsyncEngine`'s users: `AsyncLLM`, and the server's routes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from core.api.errors import EngineDeadError, EngineStalledError, RequestError, UtilityError
from core.api.weights import WeightUpdate
from core_supervision.state_table import ENDED

POLL_S = 0.02
"""Seconds between two checks whether the requests have ended for which a call waits."""


class Callee(Protocol):
    """The part of an engine's client that is needed here."""

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a utility; returns its result. Raises UtilityError, EngineDeadError."""
        ...


class EngineControl:
    """The control calls of one client of an engine; make one for each connection.

    client: returns the client of the live engine; raises when there is none.
    wait:   sleeps for a number of seconds.

    Every call raises RequestError when the engine refuses, EngineDeadError when it is gone, EngineStalledError while it is
    being started again. Its effect is in the statistics, which the engine sends before the result.
    """

    def __init__(
        self,
        client: Callable[[], Callee],
        wait: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._wait = wait
        self._num_holds = 0

    async def pause(self, mode: str = "abort", *, clear_cache: bool = True) -> None:
        """Pause the engine until `resume`; new requests wait.

        mode: handling of present requests: `abort` ends them, `wait` lets them end first, `keep` continues them later.
        clear_cache: whether cached prefixes are dropped.

        A call that is cancelled while it waits no longer halts anything, nor does one whose process dies.
        """
        if mode == "wait":
            await self._having_waited("keep_pause", clears_cache=clear_cache)
        else:
            await self.call("pause", mode=mode, clear_cache=clear_cache)

    async def resume(self) -> None:
        """End all pauses, including those of waiting calls."""
        await self.call("resume")

    async def state(self) -> dict[str, Any]:
        """Return the state of the engine as plain values; see `LifecycleCalls.lifecycle`."""
        state: dict[str, Any] = await self.call("lifecycle")
        return state

    async def is_paused(self) -> bool:
        """Whether a pause has not ended."""
        state = await self.state()
        return bool(state["is_paused"])

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Release the memory of weights and cache until `wake_up`; new requests wait.

        level: 1 keeps the prepared weights in a file, 2 reads them from the checkpoint again.
        mode: see `pause`.
        """
        if mode == "wait":
            await self._having_waited("sleep", level=level, mode="wait")
        else:
            await self.call("sleep", level=level, mode=mode)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Restore memory. tags: parts, `weights` or `kv_cache`; None: all of it."""
        await self.call("wake_up", tags=None if tags is None else list(tags))

    async def is_sleeping(self) -> bool:
        """Whether any of the memory is released."""
        state = await self.state()
        return bool(state["is_sleeping"])

    async def update_weights(self, update: WeightUpdate, mode: str = "keep") -> str:
        """Replace weights, or gather the update after `start_weight_update`. Returns the version of the weights in use.

        mode: see `pause`; requests that continue use the new weights.
        """
        fields = msgspec.to_builtins(update)
        given = {name: value for name, value in fields.items() if value is not None}
        return await self._replacing("update_weights", mode, update=given)

    async def init_weight_transfer_engine(self) -> None:
        """Do nothing: checkpoints and shared memory need no preparation."""

    async def start_weight_update(self) -> None:
        """Begin to gather updates."""
        await self.call("start_weight_update")

    async def finish_weight_update(self, weight_version: str | None = None, mode: str = "keep") -> str:
        """Apply the gathered updates. Returns the version of the weights in use."""
        return await self._replacing("finish_weight_update", mode, weight_version=weight_version)

    async def reload_weights(self) -> str:
        """Read the weights again from their present files. Returns the version of the weights in use."""
        state = await self.call("reload_weights")
        return str(state["weight_version"])

    async def _replacing(self, method: str, mode: str, **arguments: Any) -> str:
        """Make a call that replaces weights. Returns their version."""
        if mode == "wait":
            state = await self._having_waited(method, **arguments, mode="wait")
        else:
            state = await self.call(method, **arguments, mode=mode)
        return str(state["weight_version"])

    async def _having_waited(self, method: str, *, clears_cache: bool = False, **arguments: Any) -> dict[str, Any]:
        """Make a call once all present requests have ended; new ones wait for it. Returns the state.

        The engine keeps new requests waiting for this call alone, and stops doing so when the call ends, however it ends.
        Raises RequestError when all pauses are ended before the requests have ended.
        """
        self._num_holds += 1
        hold = self._num_holds
        keeps_pause = False
        try:
            state = await self.call("pause", mode="wait", clear_cache=False, hold=hold)
            while state["hold"] == "drains":
                await self._wait(POLL_S)
                state = await self.call("lifecycle", hold=hold)
            if state["hold"] == "ended":
                raise RequestError(ENDED, status=409, code="engine_refused")
            if clears_cache:  # before the pause is kept: a caller that hangs up meanwhile has not paused anything
                await self.call("reset_prefix_cache")
            changed: dict[str, Any] = await self.call(method, **arguments, hold=hold)
            keeps_pause = method == "keep_pause"
        finally:
            if not keeps_pause:
                await self._let_go(hold)
        return changed

    async def _let_go(self, hold: int) -> None:
        with contextlib.suppress(EngineDeadError, EngineStalledError):  # the hold has ended with the engine
            await self.call("let_go", hold=hold)

    async def call(self, method: str, /, **arguments: Any) -> Any:
        """Call a utility of the engine by name; returns its result."""
        try:
            state = await self._client().call(method, arguments)
        except UtilityError as error:
            raise RequestError(str(error), code="engine_refused") from None
        except EngineDeadError:
            self._client()  # raises this error again when the engine is gone for good
            raise EngineStalledError(
                f"The engine died during {method} and is being started again; look at its state before you call again."
            ) from None
        return state
