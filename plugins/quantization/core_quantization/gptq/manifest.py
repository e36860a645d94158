"""Manifest of the `gptq` quantization method. Torch-free."""

from __future__ import annotations

from core_quantization.declared.manifest import declared_manifest

CONTRACT = 1

core_spec, core_supports, core_load = declared_manifest(
    "gptq",
    "checkpoints of GPTQ: integers of 2, 3, 4 or 8 bits in groups, with act-order",
    read="core_quantization.gptq.declaration:Declaration.read",
    choose="core_quantization.gptq.method:gptq_layouts",
)
