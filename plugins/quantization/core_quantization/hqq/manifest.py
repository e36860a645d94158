"""Manifest of the `hqq` quantization method. Torch-free."""

from __future__ import annotations

from core_quantization.declared.manifest import declared_manifest

CONTRACT = 1

core_spec, core_supports, core_load = declared_manifest(
    "hqq",
    "checkpoints of HQQ: integers of 1 to 4 or 8 bits in groups of inputs; groups of outputs are held plain",
    read="core_quantization.hqq.declaration:check_declaration",
    choose="core_quantization.hqq.method:hqq_layouts",
)
