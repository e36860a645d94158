"""The description of one matrix in the headers of a torchao checkpoint. Torch-free.

Owns: this description and its checks. Never does: know a layout. Called by: the method.

A header's metadata has, by the name of a matrix, JSON with `_type`, the name of torchao's class, `_data`, its
attributes, and `_tensor_data_names`, its tensors. These lie in the file as `MODULE._weight_NAME`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.api.specs import Unsupported
from core_quantization.declared.part import StoredPart
from core_quantization.declared.shares import Shares

PREFIX: Final = "_weight_"
"""Prefix of the names of a packed matrix's tensors, after the name of its module."""
PLAIN: Final = "Tensor"
"""Type of matrices that are not packed."""
AGAIN: Final = "save the checkpoint again with safe_serialization=True and torchao 0.15 or later"


@dataclass(frozen=True, slots=True)
class Described:
    """A packed matrix.

    kind: the name of torchao's class.
    attributes: its attributes, by name; types are words such as `int4`.
    tensors: names of its tensors, without the prefix.
    """

    kind: str
    attributes: Mapping[str, Any]
    tensors: tuple[str, ...]

    def shares(self, shape: tuple[int, int]) -> Shares | None:
        """Return what shares a scale, by `block_size`; None when that is not a pair of numbers. shape: (N, K)."""
        found = self.attributes.get("block_size")
        if found == []:
            return Shares("matrix")
        if not isinstance(found, list) or len(found) != 2 or not all(type(side) is int and side > 0 for side in found):
            return None
        rows, inputs = found
        if (rows, inputs) == shape and rows > 1:
            return Shares("matrix")
        if rows > 1:
            return Shares("block", block=(rows, inputs))
        return Shares("row") if inputs == shape[1] else Shares("group", inputs)


def described(part: StoredPart, metadata: Mapping[str, str]) -> Described | Unsupported | None:
    """Return the headers' description of a part; None: it is plain. metadata: metadata of all files."""
    name = f"{part.own_name}.weight"
    written = metadata.get(name)
    if written is None:
        if any(suffix.startswith(PREFIX) for suffix in part.tensors):
            return Unsupported(f"the headers of the files do not describe '{name}', though it is packed; {AGAIN}")
        return None
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("_type"), str):
        return Unsupported(f"the header's description of '{name}' is not understood; the file is damaged")
    kind = found["_type"]
    if kind == PLAIN:
        return None
    data = found.get("_data")
    tensors = found.get("_tensor_data_names")
    if not isinstance(data, dict) or not isinstance(tensors, list):
        return Unsupported(f"the header's description of '{name}' has no _data or _tensor_data_names; {AGAIN}")
    attributes = {key: _simple(value) for key, value in data.items()}
    return Described(kind, attributes, tuple(str(tensor) for tensor in tensors))


def _simple(value: Any) -> Any:
    """Return the word of a type or an enumeration; any other value unchanged."""
    if isinstance(value, dict) and isinstance(value.get("_data"), str):
        return value["_data"]
    return value
