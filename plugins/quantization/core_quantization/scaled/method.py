"""Methods whose checkpoints store matrices with scales: the choice of each part's layout, by its tensors.

Owns: the keys of these declarations. Never does: trust a list of names where a tensor's own type shows how it is
stored.
Called by: the manifests of `fp8`, `int8`, `mxfp4`, `nvfp4` and `modelopt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api.errors import UserError
from core.api.specs import Unsupported
from core.plugin.hookspecs import LoadContext
from core_quantization.declared.floats import EXPONENTS, FORMS, DeclaredFloat8
from core_quantization.declared.inputs import rounds_inputs
from core_quantization.declared.layout import Layout
from core_quantization.declared.method import PLAIN, DeclaredMethod
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_quantization.declared.shares import Shares
from core_quantization.scaled.inputs import declared_inputs
from core_quantization.scaled.layouts import MX_BLOCK, Float4, Float8, Int8

BY_TENSORS: Final = "the type of each tensor says whether it is packed"
OF_INPUTS: Final = "it is about inputs, and read where the argument `activation` is `declared`"
NEUTRAL: Final = {
    "quant_method": "it chose the method",
    "activation_scheme": OF_INPUTS,
    "activation_scale_ub": OF_INPUTS,
    "act_per_channel": OF_INPUTS,
    "dequantize": "it tells other programs to unpack",
    "ignored_layers": BY_TENSORS,
    "kv_cache_scheme": "scales of the KV cache are found by their names",
    "modules_to_convert": BY_TENSORS,
    "modules_to_not_convert": BY_TENSORS,
    "scale_fmt": "scales are read as they are stored",
    "weight_per_channel": "the shape of the scales says it",
    "_load_in_4bit": "it tells other programs to pack",
    "_load_in_8bit": "it tells other programs to pack",
}
"""Keys of a declaration without effect here → the reason."""
FLOATS: Final = ("e4m3", "e5m2", "float8_e4m3fn", "float8_e5m2")
ONE_OF: Final = {
    "expert_dtype": ("fp8",),
    "fmt": FLOATS,
    "format": FLOATS,
    "quantization_type": FLOATS,
}
"""Keys → the values that are served."""


def scaled_method(context: LoadContext, asked: str) -> DeclaredMethod:
    """Return the method of a checkpoint that declares one of these kinds. asked: precision of the inputs.

    Raises UserError for a key or a value that is not served.
    """
    assert context.facts is not None and context.manifest is not None, "a declaration belongs to a checkpoint"
    declaration = context.facts.declaration
    method = str(context.facts.quantization)
    block = _read_keys(declaration, method)
    run = Run.of(asked, context)
    layouts = scaled_layouts(run.of_matrices, block)
    if not run.declared:
        return DeclaredMethod(context.manifest, lambda part: choose(part, layouts))
    scheme_of = declared_inputs(declaration, method, block)
    return DeclaredMethod(context.manifest, lambda part: rounds_inputs(choose(part, layouts), scheme_of(part), part))


def scaled_layouts(run: Run, block: tuple[int, int] | None) -> dict[str, Layout]:
    """Return layouts by kind of number. block: block of 8-bit floats."""
    return {
        "fp8": Float8(block, run),
        "mxfp8": DeclaredFloat8(Shares("group", MX_BLOCK), run),
        "int8": Int8(run),
        "mxfp4": Float4("mxfp4", run),
        "nvfp4": Float4("nvfp4", run),
    }


def choose(part: StoredPart, layouts: Mapping[str, Layout]) -> Layout | Unsupported | None:
    """Return the layout that a part's tensors imply; None: it is plain."""
    if "weight_blocks" in part.tensors:
        return layouts["mxfp4"]
    info = part.tensors.get("weight_packed") or part.tensors.get("weight")
    if info is None or info.dtype in PLAIN:
        return None
    scale = part.tensors.get("weight_scale")
    if info.dtype in FORMS:
        return layouts["mxfp8" if scale is not None and scale.dtype in EXPONENTS else "fp8"]
    if info.dtype == "I8":
        return layouts["int8"]
    if info.dtype == "U8" and scale is not None:
        return layouts["nvfp4" if scale.dtype in FORMS else "mxfp4"]
    return Unsupported(f"tensor '{info.source}' has type {info.dtype}; expected F8_E4M3, F8_E5M2, I8 or U8 with scales")


def _read_keys(declaration: Mapping[str, Any], method: str) -> tuple[int, int] | None:
    """Return the block of 8-bit floats. Raises UserError for keys and values that are not served."""
    block = None
    for key, value in declaration.items():
        if value is None:
            continue
        if key == "weight_block_size":
            block = _block(value)
        elif key in ONE_OF:
            if value not in ONE_OF[key]:
                raise UserError(
                    f"the checkpoint declares {method} with {key} {value!r}; expected one of {', '.join(ONE_OF[key])}."
                )
        elif key not in NEUTRAL:
            raise UserError(
                f"the checkpoint declares {method} with a key '{key}' that is not known, so its matrices could be "
                f"something else; if it does not matter: --hf-overrides.quantization_config.{key} null."
            )
    return block


def _block(value: Any) -> tuple[int, int]:
    sizes = list(value) if isinstance(value, list | tuple) else []
    if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise UserError(f"the checkpoint declares weight_block_size {value!r}; expected two positive numbers.")
    return sizes[0], sizes[1]
