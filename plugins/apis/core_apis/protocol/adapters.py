"""Bodies and answers of the paths that load and unload adapters. Owns: their Structs. Called by: their routes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from core.api.weights import MOST_TENSORS, TensorPlace


class LoadAdapterRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Load an adapter, from a path or from shared memory.

    lora_path:    below --lora-directory.
    shared_memory: name of POSIX shared memory (a file of /dev/shm), instead of `lora_path`; needs --weight-transfer-config.
    tensors:      tensors in it, by the names that adapter_model.safetensors would give them.
    adapter_config: what adapter_config.json would hold, undecoded: 1 MiB of keys took 35 ms of the event loop.
    load_inplace: whether the name may stand for another adapter already, whose requests then run to their end.
    base_model_name, is_3d_lora_weight: no effect: there is one base model, and the form of experts is seen.
    """

    lora_name: str
    lora_path: str | None = None
    shared_memory: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    tensors: Annotated[list[TensorPlace], msgspec.Meta(max_length=MOST_TENSORS)] = []
    adapter_config: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})] = msgspec.field(
        default_factory=msgspec.Raw
    )
    load_inplace: bool = False
    base_model_name: str | None = None
    is_3d_lora_weight: bool | None = None


class UnloadAdapterRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Unload an adapter. lora_int_id: no effect: names are unique."""

    lora_name: str
    lora_int_id: int | None = None


class AdapterAnswer(msgspec.Struct):
    """An adapter was loaded or unloaded. digest: its identity, once it is loaded."""

    message: str
    digest: str | msgspec.UnsetType = msgspec.UNSET
