"""What a Quark declaration says about the rounding of inputs.

Owns: the keys of `input_tensors`, and the rule that each of them means. Never does: round. Torch-free. Called by: the choice of
layouts, where the argument `activation` is `declared`.

Scales that are found at run time belong to a token or a group of its inputs, never to all tokens of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from core_quantization.declared.inputs import InputScheme
from core_quantization.declared.refusal import Refusal, known_keys, mapping_at, whole_at

USED: Final = (
    "dtype",
    "qscheme",
    "group_size",
    "is_dynamic",
    "scale_format",
    "scale_calculation_mode",
    "symmetric",
    "ch_axis",
)
NEUTRAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "block_size": "of weights; inputs have groups",
        "enable_buffer_reuse": "of the calibration",
        "is_scale_quant": "only of scales that are rounded once more, which are named by `scale_format`",
        "max_input_numel": "of the calibration",
        "mx_element_dtype": "only of a type that is not served",
        "observer_cls": "of the calibration",
        "qat_spec": "of the training",
        "round_method": "half_even, as of every type here",
        "scale_type": "the tensor has its type",
        "zero_point_type": "the tensor has its type",
    }
)
FLOATS: Final = ("fp4", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3", "fp8_e5m2")
MODES: Final = ("even", "floor", "ceil")
"""How scales that are powers of two are found, the usual one first."""
AGAIN: Final = "leave --quantization-config.activation out"


def input_scheme(where: str, found: object) -> InputScheme | None:
    """Return the rounding of inputs; None: there is none. Raises Refusal for what is not served."""
    if found is None:
        return None
    inputs = mapping_at(where, found)
    known_keys(where, inputs, USED, NEUTRAL)
    dtype = str(inputs.get("dtype"))
    if dtype not in (*FLOATS, "int8"):
        raise Refusal(f"{where}.dtype", " or ".join((*FLOATS, "int8")), dtype, AGAIN)
    scheme = inputs.get("qscheme")
    if inputs.get("is_dynamic") is not True:
        if scheme != "per_tensor":
            raise Refusal(f"{where}.qscheme", "per_tensor for static scales of inputs", repr(scheme), AGAIN)
        zeros = "input_zero_point" if inputs.get("symmetric") is False else ""
        return InputScheme(dtype, "fixed", scales=("input_scale",), zeros=zeros)
    if dtype == "int8":
        hint = "dynamic 8-bit integers are served as --quantization-config.activation int8_row"
        raise Refusal(f"{where}.is_dynamic", "false for integers", "true", hint)
    form = inputs.get("scale_format")
    if scheme in ("per_tensor", "per_channel") and form in (None, "float32"):
        return InputScheme(dtype, "divide")
    if scheme != "per_group" or form not in (None, "float32", "e8m0"):
        wanted = "per_tensor or per_channel, or per_group with scales of float32 or e8m0"
        raise Refusal(f"{where}.qscheme", wanted, f"{scheme} with scales of {form}", AGAIN)
    size = whole_at(f"{where}.group_size", inputs.get("group_size"))
    if size < 1 or inputs.get("ch_axis") not in (None, -1, 1, 2):
        raise Refusal(f"{where}.group_size", "groups of inputs", f"{size} along axis {inputs.get('ch_axis')}", AGAIN)
    return InputScheme(dtype, _mode(where, inputs) if form == "e8m0" else "divide", size)


def _mode(where: str, inputs: Mapping[str, Any]) -> Any:
    """Return the rule for powers of two."""
    mode = inputs.get("scale_calculation_mode") or MODES[0]
    if mode not in MODES:
        raise Refusal(f"{where}.scale_calculation_mode", " or ".join(MODES), repr(mode), AGAIN)
    return mode
