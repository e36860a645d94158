"""Bytes of a safetensors file as tensors.

Owns: the dtypes' names in torch. Never does: read a file. Called by: loaders that read the bytes themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.api.checkpoint import TensorInfo
from core_plugins.loaders.safetensors.header import ITEM_BYTES

if TYPE_CHECKING:
    from torch import Tensor

TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


def tensor_view(buffer: bytearray, info: TensorInfo, offset: int) -> Tensor:
    """The tensor whose bytes begin at `offset`, without a copy where they lie as its dtype needs them."""
    import torch

    dtype = getattr(torch, TORCH_NAMES[info.dtype])
    if info.nbytes == 0:
        return torch.empty(info.shape, dtype=dtype)
    raw = torch.frombuffer(buffer, dtype=torch.uint8, count=info.nbytes, offset=offset)
    if raw.data_ptr() % ITEM_BYTES[info.dtype]:
        raw = raw.clone()
    return raw.view(dtype).view(info.shape)
