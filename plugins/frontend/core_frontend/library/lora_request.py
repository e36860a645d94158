"""`LoRARequest`, by which scripts name an adapter, and its meaning.

Owns: the class, and the spreading of one or several over prompts. Never does: load an adapter. Called by: users, and the
methods that take one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.api.errors import RequestError


class SharedAdapter:
    """An adapter in shared memory, as `SharedTensors.adapter` makes it; the memory must stay until it is loaded.

    described: fields of the message to the engine (`core_adapters.sent.SentAdapter`).
    digest:    its identity; empty until it was loaded.
    """

    def __init__(self, described: dict[str, Any]) -> None:
        self.described = described
        self.digest = ""


@dataclass(frozen=True)
class LoRARequest:
    """An adapter that requests use. It is loaded when it is used first.

    lora_name:    its name, which stands for one adapter at a time.
    lora_int_id:  its number for `remove_lora` and the like; 0: it has none.
    lora_path:    a directory or file; empty: the name was loaded before.
    load_inplace: whether the name may stand for other weights already, whose requests then run to their end. It is then read
                  again each time it is used.
    base_model_name, tensorizer_config_dict, is_3d_lora_weight: no effect, and None: the base is the engine's model, and a
                  path may hold any form that is read.
    shared:       where the adapter lies in shared memory, instead of `lora_path`.
    """

    lora_name: str
    lora_int_id: int = 0
    lora_path: str = ""
    base_model_name: str | None = None
    tensorizer_config_dict: dict[str, Any] | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool | None = None
    shared: SharedAdapter | None = None

    @property
    def name(self) -> str:
        """The name."""
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        """The number."""
        return self.lora_int_id

    @property
    def path(self) -> str:
        """The path, absolute; empty without one."""
        return str(Path(self.lora_path).expanduser().absolute()) if self.lora_path else ""

    def source(self) -> dict[str, Any]:
        """Return the arguments by which an engine loads the adapter. Raises RequestError when it says of no place."""
        if self.shared is not None:
            if self.path:
                raise RequestError(
                    f"lora_request '{self.lora_name}': has lora_path and shared; give one of both.",
                    param="lora_request",
                )
            return {"sent": self.shared.described}
        if not self.path:
            raise RequestError(
                f"lora_request '{self.lora_name}': no such adapter is loaded; give its lora_path.", param="lora_request"
            )
        return {"path": self.path}

    def check_same(self, path: str, digest: str) -> None:
        """Raise RequestError when the name stands for another adapter. path, digest: of what it stands for."""
        is_other = self.path and self.path != path
        if self.shared is not None and self.shared.digest != digest:
            is_other = True
        if is_other:
            raise RequestError(
                f"lora_request '{self.lora_name}': the name stands for the adapter of {path}; use another name, or "
                "load_inplace=True.",
                param="lora_request",
            )


Adapters = LoRARequest | Sequence[LoRARequest | None] | None
"""The adapter of all prompts, or one for each."""


def checked(given: Any, *, is_served: bool) -> LoRARequest | None:
    """Return the adapter that a caller names; None: none. Raises RequestError. is_served: whether the engine has adapters."""
    if given is None:
        return None
    if not is_served:
        raise RequestError(
            "lora_request is given, but this engine serves no adapters: build it with enable_lora=True.",
            param="lora_request",
        )
    if not isinstance(given, LoRARequest) or not given.lora_name:
        raise RequestError(
            f"lora_request is a {type(given).__name__}; expected a LoRARequest with a name.", param="lora_request"
        )
    return given


def spread(given: Any, count: int) -> list[Any]:
    """Return one entry for each prompt. Raises RequestError for another number of them."""
    if given is None or isinstance(given, LoRARequest | str) or not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise RequestError(
            f"lora_request has {len(given)} entries for {count} prompts; pass one, or one for each prompt.",
            param="lora_request",
        )
    return list(given)
