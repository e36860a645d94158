"""The operations, formats and devices that the `triton` kernels serve, and the name of their arithmetic. Torch-free.

Owns: these limits. Never does: import triton. Called by: the manifest, the kernels.
"""

from __future__ import annotations

import importlib.metadata
from typing import Final

VERSION = 4  # raise when a kernel's results change
DEVICES: Final = ("cuda", "rocm", "xpu")
ACTIVATIONS: Final = ("none", "bf16", "int8", "int8_row", "fp8_row")
CODED: Final = "fp8_e4m3"
"""The format whose inputs may be 8-bit floats."""
OPERATIONS: Final = frozenset(
    {
        "linear",
        "grouped_experts",
        "heads",
        "route",
        "rms_norm",
        "rms_norm_heads",
        "layer_norm",
        "layer_norm_heads",
        "rotary",
        "gated",
        "activate",
        "add",
        "add_rms_norm",
        "open_gate",
        "scale",
        "soft_cap",
        "take_rows",
        "take_rms_norm",
        "race",
        "logprobs",
        "low_rank",
    }
)
ADAPTERS: Final = ("float32", "float16", "bfloat16")
"""Formats of adapters' matrices."""
FORMATS: Final = (
    *("float32", "float16", "bfloat16", "int4_groups", "int8_groups", "int8_channel"),
    *("fp8_e4m3", "fp8_e5m2", "nf4", "fp4", "mxfp4", "nvfp4"),
    *("int2_super", "int3_super", "int4_super", "int5_super", "int6_super"),
    *("iq4_super", "iq3_s_super", "iq3_super", "iq2_super", "iq1_super"),
)


def numerics_name() -> str:
    """Return the version of the arithmetic and of the compiler."""
    return f"triton-{VERSION}:{importlib.metadata.version('triton')}"
