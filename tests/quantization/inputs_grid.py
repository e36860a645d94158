"""Inputs for comparisons with tools: the same numbers wherever they are made."""

import torch


def grid(rows: int = 48, inputs: int = 256) -> torch.Tensor:
    """Float32 [rows, inputs] of many sizes, with zeros, powers of two, and halves between narrow numbers."""
    count = torch.arange(rows * inputs, dtype=torch.int64)
    mixed = (count * 2654435761) % (1 << 32)
    spread = (mixed.double() / (1 << 31) - 1).view(rows, inputs)
    sizes = 2.0 ** ((torch.arange(rows) % 25) - 12).double().unsqueeze(1)
    x = (spread * sizes).float()
    x[1] = 0.0
    x[2, :64] = 0.0
    x[3] = torch.arange(inputs).float() / 8 - 16
    x[4] = 2.0 ** ((torch.arange(inputs) % 40) - 20).float()
    return x
