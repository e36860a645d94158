"""Bodies and answers of the paths that load and unload adapters. Owns: their Structs. Called by: their routes."""

from __future__ import annotations

import msgspec


class LoadAdapterRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Load an adapter.

    lora_path:    below --lora-directory.
    load_inplace: whether the name may stand for another adapter already, whose requests then run to their end.
    base_model_name, is_3d_lora_weight: no effect: there is one base model, and the form of experts is seen.
    """

    lora_name: str
    lora_path: str
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
