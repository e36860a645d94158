"""The rounding of inputs in a compressed-tensors declaration.

Owns: the keys of `input_activations`, and the rule that each of them means. Never does: round. Torch-free. Called by:
the choice of layouts, where the argument `activation` is `declared`.

A scale of a whole tensor that is found at run time would be that of all tokens of a step, and so depend on other
requests. Here each token has its own, as with the strategy `token`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from core_quantization.declared.inputs import InputScheme
from core_quantization.declared.refusal import Refusal, known_keys, mapping_at, whole_at

if TYPE_CHECKING:
    from core_runtime.weights.input_rounding import Rule

USED: Final = ("num_bits", "type", "symmetric", "strategy", "group_size", "dynamic", "scale_dtype")
NEUTRAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "actorder": "of weights",
        "block_structure": "of weights; inputs have groups",
        "observer": "of the calibration",
        "observer_kwargs": "of the calibration",
        "zp_dtype": "the tensor has its type",
    }
)
NUMBERS: Final = {("int", 4): "int4", ("int", 8): "int8", ("float", 4): "fp4", ("float", 8): "fp8_e4m3"}
"""(type, bits) → kind of numbers."""
POWERS: Final = "uint8"
"""Type of scales that are powers of two."""
FLOAT_SCALES: Final = ("float32", "bfloat16", "float16")
MX_GROUP: Final = 32
STATIC: Final = ("input_scale",)
GLOBAL: Final = ("input_global_scale",)
ZERO: Final = "input_zero_point"
AGAIN: Final = "leave --quantization-config.activation out"


def input_scheme(where: str, found: object, form: str | None) -> InputScheme | None:
    """Return the rounding of inputs; None: there is none. form: format of the group. Raises Refusal for what is not served."""
    if found is None:
        return None
    inputs = mapping_at(where, found)
    known_keys(where, inputs, USED, NEUTRAL)
    kind = str(inputs.get("type") or "int").lower()
    symmetric = inputs.get("symmetric", True) is not False
    numbers = _numbers(where, inputs, kind, symmetric=symmetric)
    size = inputs.get("group_size")
    group = 0 if size in (None, -1) else whole_at(f"{where}.group_size", size)
    strategy = str(inputs.get("strategy") or ("group" if group else "tensor")).lower()
    dynamic = inputs.get("dynamic", False)
    if strategy == "tensor" and dynamic is False:
        return InputScheme(numbers, "fixed", scales=STATIC, zeros="" if symmetric else ZERO)
    if strategy == "tensor_group":
        return _nvfp4(where, inputs, numbers, group)
    if dynamic is not True:
        raise Refusal(f"{where}.dynamic", f"true for strategy {strategy}", repr(dynamic), AGAIN)
    rule: Rule = "divide" if symmetric else "range"
    if strategy in ("tensor", "token"):
        return InputScheme(numbers, rule)
    if strategy != "group" or group < 1:
        raise Refusal(f"{where}.strategy", "tensor, token, group or tensor_group", strategy, AGAIN)
    if not _has_powers(where, inputs, form):
        return InputScheme(numbers, rule, group)
    if group != MX_GROUP or kind != "float":
        raise Refusal(f"{where}.group_size", f"{MX_GROUP} floats for scales of type {POWERS}", group, AGAIN)
    return InputScheme(numbers, "carry", group)


def _numbers(where: str, inputs: Mapping[str, Any], kind: str, *, symmetric: bool) -> str:
    """Return the kind of numbers of a declaration. Raises Refusal."""
    bits = whole_at(f"{where}.num_bits", inputs.get("num_bits", 8))
    numbers = NUMBERS.get((kind, bits))
    if numbers is None:
        raise Refusal(f"{where}.num_bits", "4 or 8 bits of int or float", f"{bits} bits of {kind}", AGAIN)
    if kind == "float" and not symmetric:
        raise Refusal(f"{where}.symmetric", "true for floats", "false", AGAIN)
    return numbers


def _nvfp4(where: str, inputs: Mapping[str, Any], numbers: str, group: int) -> InputScheme:
    """Return the rounding to groups whose scales share a scale of the tensor."""
    if numbers != "fp4" or group < 1 or inputs.get("dynamic") not in (True, "local"):
        wanted = "groups of 4-bit floats with dynamic 'local' for tensor_group"
        raise Refusal(f"{where}.strategy", wanted, f"{numbers} in groups of {group}", AGAIN)
    return InputScheme(numbers, "fp8", group, scales=GLOBAL)


def _has_powers(where: str, inputs: Mapping[str, Any], form: str | None) -> bool:
    """Whether scales are powers of two. Raises Refusal for another type of scales."""
    told = inputs.get("scale_dtype")
    name = "" if told is None else str(told).removeprefix("torch.")
    if name not in ("", POWERS, *FLOAT_SCALES):
        raise Refusal(f"{where}.scale_dtype", f"{POWERS} or a float of 16 or 32 bits", told, AGAIN)
    return name == POWERS or (not name and form is not None and form.startswith("mx"))
