"""Bodies and answers of the routes that replace weights. Owns: their Structs. Called by: their routes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.api.weights import Version, WeightUpdate


class InitRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The start of a transfer. init_info: its settings, of which there are none."""

    init_info: dict[str, Any] = {}


class UpdateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An update of weights.

    update_info: where the tensors are. mode: what happens to current requests: `keep`, `wait` or `abort`.
    """

    update_info: WeightUpdate
    mode: str = "keep"


class BeginRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The start of a collected update. is_checkpoint_format: must be true."""

    is_checkpoint_format: bool = True


class FinishRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The end of a collected update. weight_version: None: the number of the update. mode: see `UpdateRequest`."""

    weight_version: Version | None = None
    mode: str = "keep"


class RpcRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A call by name, see `core_frontend.library.named_calls`. timeout: seconds; None: no limit."""

    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None


class WeightsAnswer(msgspec.Struct):
    """The result of a weight update.

    message: what was done. weight_version: of the current weights; empty for the initial ones.
    """

    message: str
    weight_version: str


class RpcAnswer(msgspec.Struct):
    """The results of a call, one per process, of which there is one.

    Of our own methods: the version of the weights if they were replaced, else null. Of others what they return, as plain
    values.
    """

    results: list[Any]


class WeightInfo(msgspec.Struct):
    """The version of the current weights; empty for those that the engine was started with."""

    weight_version: str


class WorldSize(msgspec.Struct):
    """The number of processes. world_size: those that hold a part of the weights."""

    world_size: int
