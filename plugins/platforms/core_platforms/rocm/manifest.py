"""Manifest of the `rocm` platform, built from the shared GPU hooks. Torch-free.

Called by: `core.plugin`.
"""

from __future__ import annotations

from core_platforms.cuda.hooks import hooks_of

CONTRACT = 1
SUMMARY = "AMD GPUs, through torch; it compiles, and has not been run on a device"

core_spec, core_probe, core_propose, core_load = hooks_of(
    "rocm", SUMMARY, priority=90, driver="core_platforms.rocm.driver"
)
