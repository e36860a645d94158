"""Operations and formats that the `cpu_native` kernels support, and the name of their arithmetic. Torch-free.

Owns: these limits. Never does: import the extension. Called by: the manifest, the kernels.
"""

from __future__ import annotations

VERSION = 3  # grows when a kernel's results change, or the segments that layers ask for
NUMERICS = f"cpu-native-{VERSION}-tree8"  # sums over inputs use up to eight segments, added as a binary tree
OPERATIONS = frozenset(
    {
        "linear",
        "rms_norm",
        "rms_norm_heads",
        "rotary",
        "layer_norm",
        "layer_norm_heads",
        "gated",
        "activate",
        "add",
        "open_gate",
        "scale",
        "soft_cap",
        "take_rows",
        "race",
        "logprobs",
        "route",
        "experts",
        "low_rank",
    }
)

FORMATS = [
    *("float32", "float16", "bfloat16", "int4_groups", "int8_groups", "int8_channel"),
    *("fp8_e4m3", "fp8_e5m2", "nf4", "fp4", "mxfp4", "nvfp4"),
    *("int2_super", "int3_super", "int4_super", "int5_super", "int6_super"),
    *("iq4_super", "iq3_s_super", "iq3_super", "iq2_super", "iq1_super"),
]
