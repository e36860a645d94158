"""The method of ModelOpt's checkpoints.

Owns: its algorithms and the keys of its declarations. Never does: know a layout (`scaled` does). Called by: the
manifest.

A declaration is in `hf_quant_config.json`, below `quantization`, or in the configuration without that level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api.errors import UserError
from core.api.specs import Unsupported
from core.plugin.hookspecs import LoadContext
from core_quantization.declared.inputs import rounds_inputs
from core_quantization.declared.layout import Layout
from core_quantization.declared.method import DeclaredMethod
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_quantization.scaled.inputs import modelopt_inputs
from core_quantization.scaled.method import BY_TENSORS, choose, scaled_layouts

ALGORITHMS: Final = (
    "FP8",
    "FP8_PB_WO",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "MIXED_PRECISION",
    "MXFP4",
    "MXFP8",
    "NVFP4",
    "W4A16_NVFP4",
    "W4A8_NVFP4_FP8",
    "W8A16",
    "W8A8_SQ_PER_CHANNEL",
)
"""Algorithms that are served. The tensors determine everything else."""
REFUSED: Final = {
    "INT4_AWQ": "its inputs are scaled before the product; export it for AWQ instead",
    "W4A16_AWQ": "its inputs are scaled before the product; export it for AWQ instead",
    "W4A8_AWQ": "its inputs are scaled before the product; export it for AWQ instead",
    "NVFP4_AWQ": "its inputs are scaled before the product; export it as NVFP4 instead",
    "W4A8_MXFP4_FP8": "its inputs are rounded to 8-bit floats in blocks; export it as MXFP4 instead",
}
"""Algorithms that are not served → what to do instead."""
BLOCK: Final = (128, 128)
"""Rows and columns that share a scale in FP8_PB_WO."""
SMOOTHED: Final = "pre_quant_scale"
"""Suffix of the factors of a module's inputs, which exist where they could not be merged into neighbouring layers."""
NEUTRAL: Final = {
    "quant_method": "it chose the method",
    "producer": "it says who made the checkpoint",
    "group_size": "the shape of the scales says it",
    "exclude_modules": BY_TENSORS,
    "ignore": BY_TENSORS,
    "quantized_layers": BY_TENSORS,
    "config_groups": BY_TENSORS,
    "kv_cache_quant_algo": "scales of the KV cache are found by their names",
    "kv_cache_scheme": "scales of the KV cache are found by their names",
    "has_zero_point": "nothing that is served has zero points",
    SMOOTHED: "a tensor of that name is refused",
    "is_checkpoint_nvfp4_serialized": BY_TENSORS,
    "is_checkpoint_fp8_serialized": BY_TENSORS,
}
"""Keys without effect here → the reason."""


def modelopt_method(context: LoadContext, asked: str) -> DeclaredMethod:
    """Return the method of a checkpoint. asked: precision of the inputs. Raises UserError for what is not served."""
    assert context.facts is not None and context.manifest is not None, "a declaration belongs to a checkpoint"
    outer = context.facts.declaration
    inner = outer.get("quantization")
    declaration: dict[str, Any] = {key: value for key, value in outer.items() if key != "quantization"}
    if isinstance(inner, Mapping):
        declaration.update(inner)
    _check(declaration)
    run = Run.of(asked, context)
    layouts = scaled_layouts(run.of_matrices, BLOCK)
    scheme_of = modelopt_inputs(declaration, str(declaration["quant_algo"]).upper()) if run.declared else None

    def served(part: StoredPart) -> Layout | Unsupported | None:
        if SMOOTHED in part.tensors:
            return Unsupported(
                f"'{part.own_name}' has a tensor '{SMOOTHED}': its inputs are scaled before the product; export the model "
                "without AWQ or SmoothQuant"
            )
        layout = choose(part, layouts)
        return layout if scheme_of is None else rounds_inputs(layout, scheme_of(part), part)

    return DeclaredMethod(context.manifest, served)


def _check(declaration: Mapping[str, Any]) -> None:
    algorithm = str(declaration.get("quant_algo") or "").upper()
    if algorithm in REFUSED:
        raise UserError(f"the checkpoint declares modelopt's {algorithm}: {REFUSED[algorithm]}.")
    if algorithm not in ALGORITHMS:
        raise UserError(
            f"the checkpoint declares modelopt with quant_algo '{declaration.get('quant_algo')}'; expected one of "
            f"{', '.join(ALGORITHMS)}."
        )
    for key in declaration:
        if key not in NEUTRAL and key != "quant_algo":
            raise UserError(
                f"the checkpoint declares modelopt with a key '{key}' that is not known, so its matrices could be "
                "something else; export the checkpoint again, or remove the key."
            )
