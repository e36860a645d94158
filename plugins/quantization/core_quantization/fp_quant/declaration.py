"""The declaration of an FP-Quant checkpoint. Torch-free.

Owns: its keys. Never does: look at a tensor. Called by: the manifest. Sources: transformers' `FPQuantConfig`, fp_quant 0.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from core_quantization.declared.refusal import Refusal, known_keys, whole_at

USED: Final = ("quant_method", "forward_dtype", "hadamard_group_size", "store_master_weights")
NEUTRAL: Final = {
    "backward_dtype": "of the training",
    "forward_method": "how inputs and weights are rounded; the weights are, and inputs are kept",
    "modules_to_not_convert": "the tensors say which modules are packed",
    "pseudoquantization": "the tensors say whether the weights are packed",
    "transform_init": "the rotation is in the checkpoint",
}
FORMS: Final = {"mxfp4": 32, "nvfp4": 16}
"""Type of the weights → inputs of a block."""
LARGEST_GROUP: Final = 128


@dataclass(frozen=True, slots=True)
class Rotated:
    """What all packed modules share. form: `mxfp4` or `nvfp4`. group_size: inputs that are rotated together."""

    form: str
    group_size: int


def read_declaration(found: Mapping[str, Any]) -> Rotated:
    """Read a declaration. Raises Refusal with the key that is not served."""
    known_keys("", found, USED, NEUTRAL)
    form = str(found.get("forward_dtype") or "mxfp4")
    if form not in FORMS:
        raise Refusal("forward_dtype", " or ".join(FORMS), form, "quantize the model again with one of these")
    if found.get("store_master_weights"):
        hint = "save the model again with store_master_weights=False"
        raise Refusal("store_master_weights", "false", True, hint)
    size = whole_at("hadamard_group_size", found.get("hadamard_group_size", FORMS[form]))
    if not 1 <= size <= LARGEST_GROUP:
        raise Refusal("hadamard_group_size", f"a number from 1 to {LARGEST_GROUP}", size)
    return Rotated(form, size)
