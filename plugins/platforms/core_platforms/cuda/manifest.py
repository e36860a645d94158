"""Manifest of the `cuda` platform: a row of the platforms of GPUs; any NVIDIA device goes before the processors. Torch-free.

Called by: `core.plugin`.
"""

from __future__ import annotations

from core_platforms.cuda.hooks import hooks_of

CONTRACT = 1
SUMMARY = "NVIDIA GPUs, through torch"

core_spec, core_probe, core_propose, core_load = hooks_of(
    "cuda", SUMMARY, priority=100, driver="core_platforms.cuda.driver"
)
