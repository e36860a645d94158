"""A canonical weight as named tensors and plain values, and back: what a prepared checkpoint is saved as.

Never does: write a file. Called by: loaders that save and load canonical weights.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from core.weights.canonical import CanonicalWeight
from core.weights.codebook import Codebook
from core.weights.dense import Dense
from core.weights.fp8 import FP8
from core.weights.int8_channel import Int8Channel
from core.weights.int_groups import IntGroups

FORMATS: dict[str, type[CanonicalWeight]] = {
    "dense": Dense,
    "int_groups": IntGroups,
    "int8_channel": Int8Channel,
    "fp8": FP8,
    "codebook": Codebook,
}


def to_state(weight: CanonicalWeight) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors by field name, values that JSON can hold; `format` names the class). Raises ValueError for a foreign one."""
    for name, kind in FORMATS.items():
        if type(weight) is kind:
            return weight.tensors(), {"format": name, **weight.attributes()}
    raise ValueError(f"a weight of format '{weight.name}' cannot be saved; known are {', '.join(FORMATS)}")


def from_state(tensors: dict[str, Tensor], attributes: dict[str, Any]) -> CanonicalWeight:
    """The weight that `to_state` took apart. Raises ValueError when a field is missing, unknown or of another shape."""
    rest = dict(attributes)
    name = rest.pop("format", None)
    kind = FORMATS.get(str(name))
    if kind is None:
        raise ValueError(f"a saved weight has format '{name}'; known are {', '.join(FORMATS)}")
    try:
        return kind(**rest, **tensors)
    except TypeError as error:
        raise ValueError(f"a saved weight of format '{name}' does not have the fields of one: {error}") from error
