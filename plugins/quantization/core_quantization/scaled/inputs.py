"""What the declarations of `fp8`, `int8`, `nvfp4` and their other names say about the rounding of inputs.

Owns: the rule that each declaration means. Never does: round. Torch-free. Called by: the methods of these checkpoints and of
ModelOpt's, where the argument `activation` is `declared`.

`activation_scheme` is `static`, with a scale beside each module, or `dynamic`: then inputs have the blocks of the weights, or,
where these have none, each token has a scale. A scale of all tokens of a step would depend on other requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from core.api.errors import UserError
from core.plugin.kinds import normalize
from core_quantization.declared.inputs import InputScheme, none_declared
from core_quantization.declared.part import StoredPart

if TYPE_CHECKING:
    from core_runtime.weights.input_rounding import Rule

SchemeOf = Callable[[StoredPart], InputScheme | None]
"""Function from a part to the rounding of its inputs; None: they are not rounded."""
SCALES: Final = ("input_scale", "activation_scale")
BOUNDS: Final = ("input_scale_ub", "activation_scale_ub")
GLOBAL: Final = "input_global_scale"
STATIC_FLOAT8: Final = InputScheme("fp8_e4m3", "fixed", scales=SCALES)
STATIC_INT8: Final = InputScheme("int8", "fixed", scales=SCALES)
ROWS_FLOAT8: Final = InputScheme("fp8_e4m3", "divide")
POWERS: Final = "ue8m0"
"""Name of scales that are powers of two."""


def declared_inputs(declaration: Mapping[str, Any], method: str, block: tuple[int, int] | None) -> SchemeOf:
    """Return the rounding of each part's inputs. block: rows and inputs that share a scale of 8-bit floats.

    Raises UserError for a checkpoint that declares none, or one that is not served.
    """
    name = normalize(method)
    if name == "fbgemm_fp8":
        bound = _bound(declaration.get("activation_scale_ub"))
        scheme = InputScheme("fp8_e4m3", "inverse", bound=bound, bounds=BOUNDS)
        return lambda part: scheme
    if name == "ptpc_fp8":
        return lambda part: ROWS_FLOAT8
    if name == "nvfp4":
        return _nvfp4
    asked = declaration.get("activation_scheme")
    if name == "fp8" and asked in (None, "dynamic"):
        rule: Rule = "quotient" if declaration.get("scale_fmt") == POWERS else "divide"
        dynamic = InputScheme("fp8_e4m3", rule, 0 if block is None else block[1])
        return lambda part: dynamic
    if asked == "static":
        return lambda part: STATIC_INT8 if _is_integer(part) else STATIC_FLOAT8
    if asked in (None, "none"):
        raise none_declared(method)
    raise UserError(
        f"--quantization-config.activation declared: the checkpoint declares {method} with activation_scheme {asked!r}; "
        "for integers choose int8_row, or leave the argument out."
    )


def modelopt_inputs(declaration: Mapping[str, Any], algorithm: str) -> SchemeOf:
    """Return the rounding of each part's inputs by ModelOpt's algorithm. Raises UserError where all keep their inputs."""
    layers = declaration.get("quantized_layers")
    by_name = layers if isinstance(layers, Mapping) else {}
    if algorithm not in ALGORITHMS and algorithm != MIXED:
        raise none_declared(f"modelopt's {algorithm}")

    def scheme_of(part: StoredPart) -> InputScheme | None:
        layer = by_name.get(part.own_name)
        own = layer.get("quant_algo") if isinstance(layer, Mapping) else None
        return ALGORITHMS.get(str(own or algorithm).upper())

    return scheme_of


MIXED: Final = "MIXED_PRECISION"
ALGORITHMS: Final = {
    "FP8": STATIC_FLOAT8,
    "FP8_PER_CHANNEL_PER_TOKEN": ROWS_FLOAT8,
    "MXFP4": InputScheme("fp4", "quotient", 32),
    "MXFP8": InputScheme("fp8_e4m3", "quotient", 32),
    "NVFP4": InputScheme("fp4", "fp8", 16, scales=("input_scale",), divisor=True),
    "W4A8_NVFP4_FP8": STATIC_FLOAT8,
    "W8A8_SQ_PER_CHANNEL": STATIC_INT8,
}
"""ModelOpt's algorithm → the rounding of inputs; those of others keep them. The common scale of nvfp4 is stored inverted."""


def _nvfp4(part: StoredPart) -> InputScheme | None:
    """Return the rounding of an nvfp4 module: by the common scale that it has."""
    if GLOBAL in part.tensors:
        return InputScheme("fp4", "fp8", 16, scales=(GLOBAL,))
    if "input_scale" in part.tensors:
        return ALGORITHMS["NVFP4"]
    return None


def _is_integer(part: StoredPart) -> bool:
    info = part.tensors.get("weight")
    return info is not None and info.dtype == "I8"


def _bound(found: Any) -> float:
    """Return the largest magnitude that counts. Raises UserError."""
    if found is None:
        return math.inf
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        raise UserError(f"the checkpoint declares activation_scale_ub {found!r}; expected a positive number.")
    return float(found)
