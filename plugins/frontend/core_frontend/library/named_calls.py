"""What `collective_rpc` calls by name: a table of methods with their arguments, which is data, not code.

Owns: the names, the types of their arguments, and the call on whatever has such methods. Never does: look up an attribute by a
name that came from outside. Called by: `LLM`, `AsyncLLM`, and the server's route.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from core.api.decoding import UNREADABLE
from core.api.errors import RequestError, nearest
from core.api.weights import MemoryPart, PauseMode, Version, WeightUpdate
from core_frontend.library.weight_methods import check_format, check_init

LONGEST_SHOWN = 100
"""Characters of a name that an error repeats."""


class Call(msgspec.Struct, forbid_unknown_fields=True):
    """One call with its arguments, in their order. mode: of requests that run, see `EngineControl.pause`."""

    def on(self, target: Any) -> Any:
        """Make it. target: an `LLM`, or an `EngineControl`, whose answers are awaited. Raises what the target raises."""
        raise NotImplementedError


class Reload(Call):
    """Read the weights again, as their files are now; their version."""

    def on(self, target: Any) -> Any:
        """See `Call`."""
        return target.reload_weights()


class Sleep(Call):
    """Give memory back."""

    level: int = 1
    mode: PauseMode = "abort"

    def on(self, target: Any) -> Any:
        """See `Call`."""
        return target.sleep(self.level, self.mode)


class WakeUp(Call):
    """Bring it back."""

    tags: list[MemoryPart] | None = None

    def on(self, target: Any) -> Any:
        """See `Call`."""
        return target.wake_up(self.tags)


class Update(Call):
    """Replace weights; the version of those in use."""

    update_info: WeightUpdate
    mode: PauseMode = "keep"

    def on(self, target: Any) -> Any:
        """See `Call`."""
        return target.update_weights(self.update_info, mode=self.mode)


class BeginUpdate(Call):
    """Gather updates."""

    is_checkpoint_format: bool = True

    def on(self, target: Any) -> Any:
        """See `Call`."""
        check_format(self.is_checkpoint_format)
        return target.start_weight_update()


class FinishUpdate(Call):
    """Apply what was gathered; the version of the weights in use."""

    weight_version: Version | None = None
    mode: PauseMode = "keep"

    def on(self, target: Any) -> Any:
        """See `Call`."""
        return target.finish_weight_update(self.weight_version, mode=self.mode)


class InitTransfer(Call):
    """Nothing is to be prepared."""

    init_info: dict[str, Any] = {}

    def on(self, target: Any) -> Any:
        """See `Call`."""
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
    """The call of a method by name. Raises RequestError, which lists what there is, for another method or other arguments."""
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
