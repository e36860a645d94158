"""The declaration of a Quark checkpoint about its matrices.

Owns: its keys: those that are read, those without effect on weights, and those that are not served. Never does: look at
a tensor. Torch-free. Called by: the manifest, the choice of layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from core_quantization.declared.patterns import any_means
from core_quantization.declared.refusal import Refusal, known_keys, mapping_at, pair_at, whole_at
from core_quantization.declared.shares import Shares

USED: Final = (
    "quant_method",
    "global_quant_config",
    "layer_quant_config",
    "layer_type_quant_config",
    "export",
    "algo_config",
)
NEUTRAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "exclude": "the tensors of a module say whether it is packed",
        "kv_cache_post_rope": "scales of keys before and after they rotate are alike",
        "kv_cache_quant_config": "the type of the cache is an argument; scales in the checkpoint are used with 8-bit caches",
        "quant_mode": "of the tool",
        "softmax_quant_spec": "the softmax is not rounded",
        "version": "of the tool",
    }
)
LAYER_USED: Final = ("weight", "input_tensors")
LAYER_NEUTRAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "output_tensors": "outputs are not rounded; those of keys and values have scales of the cache",
        "bias": "biases are plain tensors",
        "target_device": "of the tool",
    }
)
WEIGHT_USED: Final = (
    "dtype",
    "qscheme",
    "ch_axis",
    "group_size",
    "block_size",
    "symmetric",
    "scale_format",
    "zero_point_type",
)
WEIGHT_NEUTRAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "enable_buffer_reuse": "of the calibration",
        "is_dynamic": "weights are never rounded at run time",
        "is_scale_quant": "the tensor has its type",
        "max_input_numel": "of the calibration",
        "mx_element_dtype": "only of a type that is not served",
        "observer_cls": "of the calibration",
        "qat_spec": "of the training",
        "round_method": "of the rounding, which is done",
        "scale_calculation_mode": "of the calibration",
        "scale_type": "the tensor has its type",
    }
)
EXPORT_USED: Final = ("pack_method", "weight_format")
EXPORT_NEUTRAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "kv_cache_group": "scales of the cache are found by their names",
        "min_kv_scale": "scales of the cache are as they are stored",
        "weight_merge_groups": "each module has its scale",
    }
)
INTEGERS: Final = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
"""Bits of integers by type."""
FLOATS8: Final = ("fp8_e4m3", "fp8_e5m2")
"""Types of 8-bit floats, which the tensor's own type distinguishes."""
FLOAT4: Final = "fp4"
FLOATS6: Final = ("fp6_e2m3", "fp6_e3m2")
"""Types of 6-bit floats, which are no types of tensors."""
SCHEMES: Final = ("per_tensor", "per_channel", "per_group", "per_block")
PACK_METHODS: Final = ("reorder", "order")
REAL: Final = "real_quantized"
LAST_AXIS: Final = (-1, 1)
ONLINE: Final = ("r4", "online_r1_rotation")
"""Rotations of inputs while a model runs, which are not served. `r3` rotates queries and keys alike, so their products
stay the same.
"""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The rounding of a matrix's numbers.

    dtype: type in Quark's notation.
    shares: what shares a scale.
    zeros: whether there are zero points.
    inputs: what the declaration says about inputs, read where the argument `activation` is `declared`.
    """

    dtype: str
    shares: Shares
    zeros: bool = False
    inputs: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A whole declaration.

    layers: patterns of modules' names with their rounding; the first match counts; None: plain.
    linear: rounding of all other modules.
    reordered: whether 4-bit integers of a word are interleaved.
    """

    layers: tuple[tuple[str, Numbers | None], ...]
    linear: Numbers | None
    reordered: bool

    def numbers_of(self, module: str) -> Numbers | None:
        """Return the rounding of a module, by its name in the checkpoint; None: its weights are plain."""
        for pattern, numbers in self.layers:
            if any_means(module, [pattern]):
                return numbers
        return self.linear


def read_declaration(declaration: Mapping[str, Any]) -> Declaration:
    """Return the checked declaration. Raises Refusal with the key that is not served."""
    known_keys("", declaration, USED, NEUTRAL)
    _check_algorithms(declaration.get("algo_config"))
    layers = []
    named = mapping_at("layer_quant_config", declaration.get("layer_quant_config") or {})
    for pattern, layer in named.items():
        layers.append((pattern, _layer(f"layer_quant_config.{pattern}", layer)))
    types = mapping_at("layer_type_quant_config", declaration.get("layer_type_quant_config") or {})
    if "Linear" in types:
        linear = _layer("layer_type_quant_config.Linear", types["Linear"])
    else:
        linear = _layer("global_quant_config", declaration.get("global_quant_config"))
    return Declaration(tuple(layers), linear, _reordered(declaration.get("export")))


def _reordered(found: object) -> bool:
    export = mapping_at("export", found or {})
    known_keys("export", export, EXPORT_USED, EXPORT_NEUTRAL)
    form = export.get("weight_format", REAL)
    if form != REAL:
        raise Refusal("export.weight_format", REAL, form, f"export the model again with weight_format '{REAL}'")
    method = export.get("pack_method", "reorder")
    if method not in PACK_METHODS:
        raise Refusal("export.pack_method", " or ".join(PACK_METHODS), method)
    return bool(method == "reorder")


def _check_algorithms(found: object) -> None:
    """Check algorithms. Those that change weights only are done already; rotations of inputs would be missing at run
    time, and raise Refusal.
    """
    if found is None:
        return
    for number, algorithm in enumerate(found if isinstance(found, list) else [found]):
        where = f"algo_config.{number}"
        for key, value in mapping_at(where, algorithm).items():
            if value and key in ONLINE:
                hint = "rotations of inputs cannot be served; quantize the model without them"
                raise Refusal(f"{where}.{key}", "no rotation while the model runs", value, hint)


def _layer(where: str, found: object) -> Numbers | None:
    if found is None:
        return None
    layer = mapping_at(where, found)
    known_keys(where, layer, LAYER_USED, LAYER_NEUTRAL)
    weight = layer.get("weight")
    if weight is None:
        return None
    if isinstance(weight, list):
        hint = "quantize the model again with one scheme for weights"
        raise Refusal(f"{where}.weight", "one scheme", f"{len(weight)} of them", hint)
    numbers = _numbers(f"{where}.weight", mapping_at(f"{where}.weight", weight))
    return replace(numbers, inputs=layer.get("input_tensors"))


def _numbers(where: str, weight: Mapping[str, Any]) -> Numbers:
    known_keys(where, weight, WEIGHT_USED, WEIGHT_NEUTRAL)
    dtype = weight.get("dtype")
    served = (*INTEGERS, *FLOATS8, *FLOATS6, FLOAT4)
    if dtype not in served:
        raise Refusal(f"{where}.dtype", " or ".join(served), repr(dtype), "quantize the model again with one of these")
    scheme = weight.get("qscheme")
    if scheme not in SCHEMES:
        raise Refusal(f"{where}.qscheme", " or ".join(SCHEMES), repr(scheme))
    _check_axis(where, weight, scheme)
    shares = _shares(where, weight, scheme)
    if dtype in (FLOAT4, *FLOATS6) and (scheme != "per_group" or weight.get("scale_format") != "e8m0"):
        hint = "quantize the model again as mxfp4 or mxfp6"
        raise Refusal(f"{where}.scale_format", f"e8m0 in groups, for {dtype}", repr(weight.get("scale_format")), hint)
    if dtype in INTEGERS and scheme == "per_block":
        raise Refusal(f"{where}.qscheme", "per_tensor, per_channel or per_group for integers", scheme)
    if weight.get("zero_point_type") not in (None, "int32"):
        raise Refusal(f"{where}.zero_point_type", "int32", weight["zero_point_type"], "quantize the model again")
    unsigned = str(dtype).startswith("u")
    zeros = dtype in INTEGERS and (unsigned or weight.get("symmetric") is False)
    return Numbers(str(dtype), shares, zeros)


def _check_axis(where: str, weight: Mapping[str, Any], scheme: str) -> None:
    axis = weight.get("ch_axis")
    if scheme == "per_channel" and axis not in (None, 0):
        raise Refusal(f"{where}.ch_axis", "0, the outputs, for channels", axis, "quantize the model again")
    if scheme == "per_group" and axis not in (None, *LAST_AXIS):
        raise Refusal(f"{where}.ch_axis", "-1, the inputs, for groups", axis, "quantize the model again")


def _shares(where: str, weight: Mapping[str, Any], scheme: str) -> Shares:
    if scheme == "per_tensor":
        return Shares("matrix")
    if scheme == "per_channel":
        return Shares("row")
    if scheme == "per_block":
        return Shares("block", block=pair_at(f"{where}.block_size", weight.get("block_size")))
    size = whole_at(f"{where}.group_size", weight.get("group_size"))
    if size < 1:
        raise Refusal(f"{where}.group_size", "a positive number", size)
    return Shares("group", size)
