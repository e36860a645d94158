"""What a KV cache of each type gives back, by torch's own casts: the oracle for every backend's cache."""

import torch

from core_kit.oracles.levels import as_coded_value, as_turned_key

EIGHT_BIT = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
TYPES = [
    "float32",
    "bfloat16",
    "float16",
    *EIGHT_BIT,
    "fp8_per_token_head",
    "int8_per_token_head",
    "k8v4_per_token_head",
]


def stored(x: torch.Tensor, dtype: str, scale: float = 1.0, *, values: bool = False) -> torch.Tensor:
    """x [..., heads, width] after a round trip, float64; scale: of a whole layer; values: whether x is V."""
    if dtype in EIGHT_BIT:
        kind = EIGHT_BIT[dtype]
        most = torch.finfo(kind).max
        return (x / scale).clamp(-most, most).to(kind).double() * scale
    if dtype == "k8v4_per_token_head":
        return (as_coded_value(x) if values else as_turned_key(x)).double()
    if dtype.endswith("per_token_head"):
        most = 127 if dtype.startswith("int8") else 448
        largest = x.abs().amax(-1, keepdim=True)
        codes = torch.where(largest > 0, x * (most / largest), 0)
        codes = codes.round() if dtype.startswith("int8") else codes.to(torch.float8_e4m3fn)
        return codes.double() * (largest / most)
    return x.to(getattr(torch, dtype)).double()
