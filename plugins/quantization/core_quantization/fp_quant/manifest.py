"""Manifest of the `fp_quant` quantization method. Torch-free."""

from __future__ import annotations

from core_quantization.declared.manifest import declared_manifest

CONTRACT = 1

core_spec, core_supports, core_load = declared_manifest(
    "fp_quant",
    "checkpoints of FP-Quant: mxfp4 and nvfp4 with rotated inputs, packed or as plain numbers",
    read="core_quantization.fp_quant.declaration:read_declaration",
    choose="core_quantization.fp_quant.layout:fp_quant_layouts",
)
