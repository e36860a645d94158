"""Manifest of the `compressed-tensors` quantization method. Torch-free."""

from __future__ import annotations

from core_quantization.declared.manifest import declared_manifest

CONTRACT = 1

core_spec, core_supports, core_load = declared_manifest(
    "compressed-tensors",
    "checkpoints of llm-compressor: integers of 1 to 8 bits, fp8, mxfp4, nvfp4, sparse matrices",
    read="core_quantization.compressed.declaration:read_declared",
    choose="core_quantization.compressed.layouts:Choice",
)
