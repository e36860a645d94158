"""Checks of the tensors that native kernels read by address: dtype, contiguous rows, equal numbers of rows.

Owns: the error messages for a wrong tensor. Never does: copy or convert one. Called by: the bindings of the kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_rows(tensor: Tensor, width: int, what: str) -> tuple[int, int]:
    """Return (rows, row stride) of a float32 matrix with contiguous rows of `width`. Raises ValueError."""
    rows, actual = tensor.shape
    stride, step = tensor.stride()
    contiguous = step == 1 or width <= 1
    if actual != width or not contiguous or tensor.dtype is not torch.float32:
        raise ValueError(
            f"{what} is {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}, "
            f"expected float32 [rows, {width}] with contiguous rows"
        )
    return rows, stride


def check_heads(tensor: Tensor, what: str) -> tuple[int, int, int, int, int]:
    """Return (rows, heads, width, row stride, head stride) of a float32 [T, H, D] with contiguous D. Raises ValueError."""
    rows, heads, width = tensor.shape
    row_stride, head_stride, step = tensor.stride()
    if step != 1 or tensor.dtype is not torch.float32:
        raise ValueError(
            f"{what} is {tensor.dtype} with strides {tensor.stride()}, expected float32 with contiguous heads"
        )
    return rows, heads, width, row_stride, head_stride


def check_table(tensor: Tensor, dtype: torch.dtype, what: str) -> int:
    """Return the address of a contiguous tensor of `dtype`. Raises ValueError."""
    if tensor.dtype is not dtype or not tensor.is_contiguous():
        raise ValueError(f"{what} is {tensor.dtype} with strides {tensor.stride()}, expected contiguous {dtype}")
    return int(tensor.data_ptr())


def check_same(rows: int, other: int, what: str) -> None:
    """Raise ValueError when `what` has `other` rows instead of `rows`."""
    if rows != other:
        raise ValueError(f"{what} has {other} rows, expected {rows}")


def check_tables(rows: int, what: str, *tables: tuple[Tensor, torch.dtype]) -> list[int]:
    """Return the addresses of contiguous one-dimensional tensors with `rows` elements. Raises ValueError."""
    for tensor, _ in tables:
        if tensor.shape != (rows,):
            shape = tuple(tensor.shape)
            raise ValueError(f"an argument of {what} has the shape {shape}, expected {rows} rows")
    return [check_table(tensor, dtype, f"an argument of {what}") for tensor, dtype in tables]


def check_logits(logits: Tensor, which: Tensor) -> tuple[int, tuple[int, int, int]]:
    """Return the address of the logits, and (stride, vocabulary size, number of chosen rows). Raises IndexError,
    ValueError.
    """
    rows, width = logits.shape
    _, stride = check_rows(logits, width, "logits")
    count = len(which)
    if count:
        lowest = int(which.min())
        highest = int(which.max())
        if lowest < 0 or highest >= rows:
            raise IndexError(f"which names rows {which.tolist()} of {rows}")
    return logits.data_ptr(), (stride, width, count)


def check_masks(masks: tuple[Tensor, Tensor], count: int, vocab_size: int) -> list[int]:
    """Return the addresses of the bitmasks and of each row's mask index, and the number of words in a bitmask. Raises
    IndexError, ValueError.
    """
    words, index = masks
    least = -(-vocab_size // 32)
    if words.dtype != torch.int32 or words.dim() != 2 or not words.is_contiguous() or words.shape[1] < least:
        raise ValueError(
            f"bitmasks are {words.dtype} of the shape {tuple(words.shape)}; expected contiguous torch.int32 rows of "
            f"{least} words or more, for {vocab_size} entries"
        )
    check_same(len(index), count, "index of bitmasks")
    rows = check_table(index, torch.int64, "index of bitmasks")
    if count and int(index.max()) >= len(words):
        raise IndexError(f"rows name bitmasks {index.tolist()} of {len(words)}")
    return [words.data_ptr(), rows, words.shape[1]]
