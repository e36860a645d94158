"""Translation of a mask of transformers to the terms of an `AttentionSpec`: which keys a query sees.

Owns: the mask function of a trial, which returns a description in place of a mask. Never does: mask anything.
Called by: transformers' mask creation (in a trial), the trial.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

FAR: Final = 1 << 18
"""A position beyond every window that a model may have."""


class NotCausal(Exception):
    """A mask that is neither causal nor a causal window."""


def described_mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: Callable[..., Any], **options: Any
) -> Tensor:
    """Return a tensor without values. Its attribute `core_window` is the window of the mask, None where a query sees
    everything before it.

    -1: neither of the two.
    """
    described = torch.empty(batch_size, 1, q_length, kv_length, dtype=torch.bool, device="meta")
    try:
        window = window_of(mask_function)
    except Exception:  # a mask function that fails on plain indices is no causal window
        window = -1
    described.core_window = window
    return described


def window_of(mask_function: Callable[..., Any]) -> int | None:
    """Return the number of keys that a query sees, itself included; None: all before it. Raises NotCausal."""
    with torch.device("cpu"):
        first = int(_visible(mask_function, FAR)[0])
        window = None if first == 0 else FAR - first + 1
        reach = window or FAR
        for query in (0, 1, 2, reach - 2, reach - 1, reach, reach + 1, 2 * reach // 3, 3 * reach // 2):
            if 0 <= query <= FAR:
                _check(mask_function, query, window)
    return window


def _check(mask_function: Callable[..., Any], query: int, window: int | None) -> None:
    first = 0 if window is None else max(0, query - window + 1)
    seen = _visible(mask_function, query)
    if int(seen[0]) != first or int(seen[-1]) != query or len(seen) != query - first + 1:
        raise NotCausal


def _visible(mask_function: Callable[..., Any], query: int) -> Tensor:
    """Return the positions of the keys that a query sees, in order."""
    zero = torch.tensor(0)
    keys = torch.arange(query + 3)
    seen = mask_function(zero, zero, torch.tensor(query), keys)
    positions = torch.as_tensor(seen).expand(len(keys)).nonzero()[:, 0]
    if not len(positions):
        raise NotCausal
    return positions
