"""Manifest of the `aqlm` quantization method. Torch-free."""

from __future__ import annotations

from core_quantization.declared.manifest import declared_manifest

CONTRACT = 1

core_spec, core_supports, core_load = declared_manifest(
    "aqlm",
    "checkpoints of AQLM: sums of vectors from codebooks, which are held plain",
    read="core_quantization.aqlm.declaration:read_declaration",
    choose="core_quantization.aqlm.method:aqlm_layouts",
)
