"""Compute capabilities of NVIDIA's GPUs, by a device's profile. Torch-free.

Owns: the oldest one that is served. Never does: query a device. Called by: the probe, the manifest.
"""

from __future__ import annotations

from typing import Final

OLDEST: Final = 80
"""Triton compiles for compute capability 8.0 and newer, and only those have matrix units for bfloat16."""


def sm_of(profile: str) -> int:
    """Return the number of a profile, 90 for `sm_90`; 0 when the driver did not report one."""
    digits = profile.removeprefix("sm_")
    return int(digits) if digits.isdigit() else 0


def refusal(profile: str) -> str:
    """Return why a GPU is too old to be used; empty for one that is not, or that has no number."""
    sm = sm_of(profile)
    if not 0 < sm < OLDEST:
        return ""
    return f"has compute capability {sm // 10}.{sm % 10}, and Triton compiles kernels for 8.0 (Ampere) and newer"
