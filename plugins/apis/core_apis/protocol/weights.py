"""Bodies and answers of the routes that replace weights. Owns: their Structs. Called by: their routes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.api.weights import Version, WeightUpdate


class InitRequest(msgspec.Struct, forbid_unknown_fields=True):
    """init_info: settings of a transfer, of which there are none."""

    init_info: dict[str, Any] = {}


class UpdateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """update_info: where the tensors are. mode: what becomes of requests that are there: `keep`, `wait` or `abort`."""

    update_info: WeightUpdate
    mode: str = "keep"


class BeginRequest(msgspec.Struct, forbid_unknown_fields=True):
    """is_checkpoint_format: must be true."""

    is_checkpoint_format: bool = True


class FinishRequest(msgspec.Struct, forbid_unknown_fields=True):
    """weight_version: None: the number of the update. mode: see `UpdateRequest`."""

    weight_version: Version | None = None
    mode: str = "keep"


class RpcRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A call by name, see `core_frontend.library.named_calls`. timeout: seconds; None: any time."""

    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None


class WeightsAnswer(msgspec.Struct):
    """message: what was done. weight_version: of the weights in use; empty for those of the start."""

    message: str
    weight_version: str


class RpcAnswer(msgspec.Struct):
    """results: one, of the only process: the version of the weights where they are replaced, else null."""

    results: list[str | None]


class WorldSize(msgspec.Struct):
    """world_size: processes that hold a part of the weights."""

    world_size: int
