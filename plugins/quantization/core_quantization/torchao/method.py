"""The method of torchao checkpoints: the choice of a layout for each module.

Owns: this choice, and the list of torchao's classes that are not served. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from core.api.specs import Unsupported
from core.plugin.hookspecs import LoadContext
from core_quantization.declared.arguments import DeclaredArguments
from core_quantization.declared.declares import declaring
from core_quantization.declared.layout import Layout
from core_quantization.declared.method import DeclaredMethod
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_quantization.torchao.declaration import check_declaration
from core_quantization.torchao.described import Described, described
from core_quantization.torchao.floats import block_floats, scaled_floats
from core_quantization.torchao.integers import nibbles, signed_bytes, small_integers

MAKE: Final[Mapping[str, Callable[[Described, StoredPart, Run], Layout | Unsupported]]] = {
    "Float8Tensor": scaled_floats,
    "Int4Tensor": nibbles,
    "Int8Tensor": signed_bytes,
    "IntxUnpackedToInt8Tensor": small_integers,
    "MXTensor": block_floats,
    "NVFP4Tensor": block_floats,
}
"""Name of torchao's class → function that returns the layout of a module."""
_TILES: Final = (
    "its integers lie in tiles of one kind of chip; quantize the model again with int4_packing_format 'plain'"
)
REFUSED: Final = {
    "Int4PlainInt32Tensor": _TILES,
    "Int4PreshuffledTensor": _TILES,
    "Int4TilePackedTo4dTensor": _TILES,
}
_OWN_SIZE: Final = "inputs are rounded by their own size"
NEUTRAL_TENSORS: Final = {
    "act_per_tensor_scale": _OWN_SIZE,
    "act_quant_scale": _OWN_SIZE,
    "act_quant_zero_point": _OWN_SIZE,
}
"""Tensors without effect → the reason."""
TENSORS: Final = ("qdata", "scale", "zero_point", "per_tensor_scale", *NEUTRAL_TENSORS)
_RUN: Final = "the engine's dtype is that of the run"
_KERNELS: Final = "it chooses kernels of another engine"
NEUTRAL_ATTRIBUTES: Final = {
    "act_quant_kwargs": _OWN_SIZE,
    "activation_dtype": _OWN_SIZE,
    "activation_quantization": _OWN_SIZE,
    "dtype": _RUN,
    "kernel_preference": _KERNELS,
    "mm_config": _KERNELS,
    "orig_dtype": _RUN,
    "reduce_range": "it is about how the weights were found",
    "shape": "the model knows it",
    "use_triton_kernel": _KERNELS,
}
"""Attributes without effect → the reason."""
ATTRIBUTES: Final = ("block_size", "elem_dtype", "is_swizzled_scales", "target_dtype", *NEUTRAL_ATTRIBUTES)


def torchao_method(context: LoadContext) -> DeclaredMethod:
    """Return the method of a checkpoint. Raises UserError for a declaration or arguments that are not served."""
    manifest = declaring(context, "torchao")
    check_declaration(manifest.facts().declaration)
    arguments = context.arguments or DeclaredArguments()
    run = Run.of(arguments.activation, context)

    def choose(part: StoredPart) -> Layout | Unsupported | None:
        found = described(part, manifest.metadata)
        if found is None or isinstance(found, Unsupported):
            return found
        return _refused(found, part) or MAKE[found.kind](found, part, run)

    return DeclaredMethod(manifest, choose)


def _refused(found: Described, part: StoredPart) -> Unsupported | None:
    """Return the part of a description that is not supported, None without one."""
    subject = f"'{part.own_name}' is a {found.kind} of torchao"
    if found.kind in REFUSED:
        return Unsupported(f"{subject}: {REFUSED[found.kind]}")
    if found.kind not in MAKE:
        return Unsupported(f"{subject}; expected one of {', '.join(MAKE)}")
    if "act_pre_scale" in found.tensors:
        return Unsupported(
            f"{subject} whose inputs are scaled before the product (act_pre_scale); quantize the model again without AWQ or "
            "SmoothQuant"
        )
    for name in found.tensors:
        if name not in TENSORS:
            return Unsupported(
                f"{subject} with a tensor '{name}' that is not known, so the matrix could be another one"
            )
    for name in found.attributes:
        if name not in ATTRIBUTES:
            return Unsupported(f"{subject} with '{name}', which is not known, so the matrix could be another one")
    return None
