"""The declaration of an HQQ checkpoint. Torch-free.

Owns: the lists of used and neutral keys, with reasons. Never does: look at a tensor. Called by: the manifest. Sources:
hqq's `BaseQuantizeConfig`, transformers' `HqqConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core_quantization.declared.refusal import Refusal, known_keys, mapping_at

BITS: Final = (8, 4, 3, 2, 1)
USED: Final = ("quant_config", "quant_method")
_TENSORS: Final = "the tensors say which modules are packed, and how"
NEUTRAL: Final = {
    "dynamic_config": _TENSORS,
    "skip_modules": _TENSORS,
}
WEIGHTS: Final = "weight_quant_params"
NEUTRAL_OF_SCALES: Final = {
    "offload_meta": "it is about where another engine keeps scales",
    "scale_quant_params": "scales that are packed themselves are tensors of another name, which are refused",
    "zero_quant_params": "zero points that are packed themselves are tensors of another name, which are refused",
}
_FOUND: Final = "it is about how the weights were found"
NEUTRAL_OF_WEIGHTS: Final = {
    "axis": _TENSORS,
    "channel_wise": _TENSORS,
    "group_size": _TENSORS,
    "optimize": _FOUND,
    "round_zero": _FOUND,
    "view_as_float": _TENSORS,
}


def check_declaration(found: Mapping[str, Any]) -> None:
    """Check a declaration. Raises Refusal with the key that is not served."""
    known_keys("", found, USED, NEUTRAL)
    where = "quant_config"
    config = mapping_at(where, found.get(where) or {})
    if WEIGHTS in config:
        _check_one(where, config)
        return
    for tag, own in config.items():  # one for each kind of layer, such as self_attn.q_proj
        if own is not None:
            _check_one(f"{where}.{tag}", mapping_at(f"{where}.{tag}", own))


def _check_one(where: str, config: Mapping[str, Any]) -> None:
    known_keys(where, config, (WEIGHTS,), NEUTRAL_OF_SCALES)
    inner = f"{where}.{WEIGHTS}"
    weights = mapping_at(inner, config.get(WEIGHTS) or {})
    known_keys(inner, weights, ("nbits",), NEUTRAL_OF_WEIGHTS)
    bits = weights.get("nbits", BITS[1])
    if bits not in BITS:
        raise Refusal(f"{inner}.nbits", "8, 4, 3, 2 or 1", bits, "quantize the model again with one of these")
