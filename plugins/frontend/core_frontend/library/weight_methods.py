"""Sleep and weight updates of an engine in this process, under vLLM's names.

Owns: `WeightMethods`, which `LLMEngine` and `LLM` have, and the accepted forms of an update. Never does: touch a
weight. Called by: users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from core.api.errors import UNREADABLE, RequestError
from core.api.weights import PauseMode, WeightUpdate
from core_frontend.library.arguments import tags_of

if TYPE_CHECKING:
    from core_frontend.stepped import SteppedClient


class WeightMethods:
    """Methods of an engine whose caller drives the steps."""

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Release the memory of weights and cache until `wake_up`. Needs `enable_sleep_mode=True`.

        level: 1 stores the prepared weights in a file, 2 reads them from the checkpoint again.
        mode: for unfinished requests: `abort` ends them, `keep` continues them later; `wait` is refused, since only the
            caller can compute them.
        Raises UtilityError.
        """
        self._call("sleep", level=level, mode=mode)

    def wake_up(self, tags: str | Sequence[str] | None = None) -> None:
        """Restore memory. tags: which part, `weights` or `kv_cache`; None: all of it. Raises UtilityError."""
        self._call("wake_up", tags=tags_of(tags))

    def is_sleeping(self) -> bool:
        """Whether some of the memory is released."""
        return bool(self._call("lifecycle")["is_sleeping"])

    @property
    def weight_version(self) -> str:
        """Return the version of the current weights; empty for those of the checkpoint."""
        return str(self._call("lifecycle")["weight_version"])

    def init_weight_transfer_engine(self, request: Any = None) -> None:
        """Do nothing: checkpoints and shared memory need no preparation.

        request: as in vLLM, an object or mapping with `init_info`, which must be empty.
        """
        check_init(request)

    def update_weights(self, request: Any = None, *, mode: PauseMode = "keep", **fields: Any) -> str:
        """Replace some or all weights; return the new version. After `start_weight_update` updates are only collected.

        request: a `WeightUpdate`, a mapping of its fields, or, as in vLLM, either of them under `update_info`.
        mode: as in `sleep`, for unfinished requests; continued ones use the new weights.
        fields: of `WeightUpdate`, in place of `request`: `path`, `names`, `shared_memory`, `tensors`, `weight_version`,
            `frees_first`.
        Raises RequestError or UtilityError if something does not fit; then nothing has changed.
        """
        update = as_update(request, fields)
        given = {name: value for name, value in msgspec.to_builtins(update).items() if value is not None}
        return str(self._call("update_weights", update=given, mode=mode)["weight_version"])

    def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        """Collect updates until `finish_weight_update`.

        is_checkpoint_format: must be true: tensors are as in a checkpoint.
        """
        check_format(is_checkpoint_format)
        self._call("start_weight_update")

    def finish_weight_update(self, weight_version: str | None = None, *, mode: PauseMode = "keep") -> str:
        """Apply the collected updates; return the version of the weights."""
        return str(self._call("finish_weight_update", weight_version=weight_version, mode=mode)["weight_version"])

    def reload_weights(self) -> str:
        """Read the weights again from their files; return their version."""
        return str(self._call("reload_weights")["weight_version"])

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        state: dict[str, Any] = self._live_client().core.call(method, arguments)
        return state

    def _live_client(self) -> SteppedClient:
        raise NotImplementedError


def as_update(request: Any, fields: Mapping[str, Any]) -> WeightUpdate:
    """Return the caller's update as a `WeightUpdate`. Raises RequestError."""
    if request is not None and fields:
        raise RequestError("update_weights takes either a request or its fields, not both.", param="request")
    given = dict(fields) if request is None else _inner(request, "update_info")
    if isinstance(given, WeightUpdate):
        return given
    try:
        return msgspec.convert(given, WeightUpdate)
    except UNREADABLE as error:
        raise RequestError(f"weight update: {error}.", param="update_info") from None


def check_init(request: Any) -> None:
    """Raise RequestError for settings of a transfer, of which there are none."""
    info = None if request is None else _inner(request, "init_info")
    if info:
        raise RequestError(
            "init_info is not empty; weights come from checkpoints and shared memory, which need no preparation.",
            param="init_info",
        )


def check_format(is_checkpoint_format: bool) -> None:
    """Raise RequestError for tensors in the layout of kernels."""
    if not is_checkpoint_format:
        raise RequestError(
            "is_checkpoint_format is false; expected true: tensors are taken as a checkpoint has them.",
            param="is_checkpoint_format",
        )


def _inner(request: Any, field: str) -> Any:
    """Return the content of `field`, if there is such a field; else the request itself."""
    if isinstance(request, Mapping):
        return request.get(field, request)
    return getattr(request, field, request)
