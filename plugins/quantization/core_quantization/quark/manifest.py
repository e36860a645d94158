"""Manifest of the `quark` quantization method. Torch-free."""

from __future__ import annotations

from core_quantization.declared.manifest import declared_manifest

CONTRACT = 1

core_spec, core_supports, core_load = declared_manifest(
    "quark",
    "checkpoints of AMD Quark: integers of 4 and 8 bits, fp8, mxfp4",
    read="core_quantization.quark.declaration:read_declaration",
    choose="core_quantization.quark.layouts:Choice",
)
