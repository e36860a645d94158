"""Manifest of the `awq` quantization method. Torch-free."""

from __future__ import annotations

from core_quantization.declared.manifest import declared_manifest

CONTRACT = 1

core_spec, core_supports, core_load = declared_manifest(
    "awq",
    "checkpoints of AWQ: 4-bit integers in groups with zero points, layouts gemm and gemv",
    read="core_quantization.awq.declaration:Declaration.read",
    choose="core_quantization.awq.method:awq_layouts",
)
