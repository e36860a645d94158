"""Manifest of the `cuda` platform, built from the shared GPU hooks; an NVIDIA device is preferred to the CPU.
Torch-free.

Called by: `core.plugin`.
"""

from __future__ import annotations

from core_platforms.cuda.hooks import hooks_of

CONTRACT = 1
SUMMARY = "NVIDIA GPUs, through torch"

core_spec, core_probe, core_propose, core_load = hooks_of(
    "cuda", SUMMARY, priority=100, driver="core_platforms.cuda.driver"
)
