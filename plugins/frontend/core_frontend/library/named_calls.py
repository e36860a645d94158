"""The calls that `collective_rpc` makes by name: a table of methods with their arguments, which is data, not code.

Owns: the names, the types of their arguments, and the call on any object with such methods. Never does: look up an
attribute by a name that came from outside. Called by: `LLM`, `AsyncLLM`, and the server's route.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from core.api.errors import UNREADABLE, RequestError, nearest
from core.api.weights import MemoryPart, PauseMode, Version, WeightUpdate
from core_frontend.library.weight_methods import check_format, check_init

LONGEST_SHOWN = 100
"""Maximum number of characters of a name that an error repeats."""


class Call(msgspec.Struct, forbid_unknown_fields=True):
    """One call with its arguments, in order. mode: for current requests, see `EngineControl.pause`."""

    def on(self, target: Any) -> Any:
        """Make the call.

        target: an `LLM`, or an `EngineControl`, whose answers are awaited. Raises the target's errors.
        """
        raise NotImplementedError


class Reload(Call):
    """Read the weights again from their files; the answer is their version."""

    def on(self, target: Any) -> Any:
        """Call `reload_weights`; see `Call`."""
        return target.reload_weights()


class Sleep(Call):
    """Release the memory of weights and cache."""

    level: int = 1
    mode: PauseMode = "abort"

    def on(self, target: Any) -> Any:
        """Call `sleep`; see `Call`."""
        return target.sleep(self.level, self.mode)


class WakeUp(Call):
    """Restore the memory that `Sleep` released."""

    tags: list[MemoryPart] | None = None

    def on(self, target: Any) -> Any:
        """Call `wake_up`; see `Call`."""
        return target.wake_up(self.tags)


class Update(Call):
    """Replace weights; the answer is the new version."""

    update_info: WeightUpdate
    mode: PauseMode = "keep"

    def on(self, target: Any) -> Any:
        """Call `update_weights`; see `Call`."""
        return target.update_weights(self.update_info, mode=self.mode)


class BeginUpdate(Call):
    """Collect updates until `FinishUpdate`."""

    is_checkpoint_format: bool = True

    def on(self, target: Any) -> Any:
        """Call `start_weight_update`; see `Call`."""
        check_format(self.is_checkpoint_format)
        return target.start_weight_update()


class FinishUpdate(Call):
    """Apply the collected updates; the answer is the version of the weights."""

    weight_version: Version | None = None
    mode: PauseMode = "keep"

    def on(self, target: Any) -> Any:
        """Call `finish_weight_update`; see `Call`."""
        return target.finish_weight_update(self.weight_version, mode=self.mode)


class InitTransfer(Call):
    """Do nothing: a transfer needs no preparation."""

    init_info: dict[str, Any] = {}

    def on(self, target: Any) -> Any:
        """Check the settings of the transfer, of which there are none; see `Call`."""
        check_init(self.init_info)
        return target.init_weight_transfer_engine()


CALLS: Mapping[str, type[Call]] = MappingProxyType(
    {
        "reload_weights": Reload,
        "sleep": Sleep,
        "wake_up": WakeUp,
        "update_weights": Update,
        "start_weight_update": BeginUpdate,
        "finish_weight_update": FinishUpdate,
        "init_weight_transfer_engine": InitTransfer,
    }
)


def named_call(method: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = MappingProxyType({})) -> Call:
    """Return the call of a method by name.

    Raises RequestError, which lists the known ones, for another method or other arguments.
    """
    kind = CALLS.get(method) if isinstance(method, str) else None
    if kind is None:
        shown = method[:LONGEST_SHOWN] if isinstance(method, str) else type(method).__name__
        known = ", ".join(CALLS)
        raise RequestError(
            f"method is {shown!r}; the engine is another process, where these can be called: {known}.{nearest(shown, CALLS)} "
            "`LLM` calls any function on its worker.",
            param="method",
        )
    names = kind.__struct_fields__
    expected = ", ".join(names) or "none"
    if len(args) > len(names):
        raise RequestError(f"{method} was given {len(args)} arguments; expected: {expected}.", param="args")
    given = dict(zip(names, args, strict=False))
    twice = sorted(given.keys() & kwargs.keys())
    if twice:
        raise RequestError(f"{method} was given {twice[0]} twice, in args and kwargs; leave one out.", param="kwargs")
    try:
        return msgspec.convert({**given, **kwargs}, kind)
    except UNREADABLE as error:
        raise RequestError(f"{method}: {error}; expected arguments: {expected}.", param="kwargs") from None
