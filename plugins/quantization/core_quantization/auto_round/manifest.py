"""Manifest of the `auto-round` quantization method. Torch-free."""

from __future__ import annotations

from core_quantization.declared.manifest import declared_manifest

CONTRACT = 1

core_spec, core_supports, core_load = declared_manifest(
    "auto-round",
    "checkpoints of AutoRound: integers of 2, 3, 4 or 8 bits in groups, in the layouts of gptq and awq",
    read="core_quantization.auto_round.declaration:Declaration.read",
    choose="core_quantization.auto_round.method:auto_round_layouts",
)
