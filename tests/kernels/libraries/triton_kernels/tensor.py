from dataclasses import dataclass
from typing import Any

import torch

FP4 = "fp4"


@dataclass
class Storage:
    data: torch.Tensor
    layout: Any = None


@dataclass
class Tensor:
    storage: Storage
    dtype: Any


def wrap_torch_tensor(torch_tensor, dtype=None):
    if dtype == FP4:
        assert torch_tensor.dtype == torch.uint8 and torch_tensor.stride(1) == 1, "packed along K, axis 1"
    return Tensor(Storage(torch_tensor), dtype or torch_tensor.dtype)


def convert_layout(tensor, layout_cls, **layout_kwargs):
    return Tensor(Storage(tensor.storage.data, (layout_cls, layout_kwargs)), tensor.dtype)
