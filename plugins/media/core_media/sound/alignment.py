"""When each token of a transcript was said, from what the decoder attends to.

Owns: what transformers' `_extract_token_timestamps` computes from the weights of cross attention. Never does: compute these
weights. Called by: the aligner.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def token_times(weights: Tensor, width: int) -> list[int]:
    """Return the row at which each token is said, rising. weights: [heads, tokens, rows]. width: of the median, an odd number.

    Each head is normalized over the tokens, smoothed over the rows, and averaged; the path along which tokens and rows agree
    most rises in both (dynamic time warping).
    """
    spread = weights.std(-2, keepdim=True, unbiased=False)
    smooth = _smoothed((weights - weights.mean(-2, keepdim=True)) / spread, width)
    tokens, rows = _path(-smooth.mean(0).double().numpy())
    begins = np.diff(tokens, prepend=-1) > 0
    return [int(row) for row in rows[begins]]


def _smoothed(values: Tensor, width: int) -> Tensor:
    """Return the median of each number and its neighbours along the last axis."""
    pad = width // 2
    if values.shape[-1] <= pad:
        return values
    padded = torch.nn.functional.pad(values, (pad, pad, 0, 0), mode="reflect")
    return padded.unfold(-1, width, 1).sort()[0][..., pad]


def _path(matrix: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the cheapest path through a matrix, as the indices of its rows and columns, both rising.

    Costs of an antidiagonal depend on the two before it alone, so each is computed at once.
    """
    height, width = matrix.shape
    cost: NDArray[np.float32] = np.full((height + 1, width + 1), np.inf, np.float32)
    cost[0, 0] = 0
    steps: NDArray[Any] = np.full((height + 1, width + 1), 2, np.int8)
    steps[:, 0] = 1
    steps[0, :] = 2
    for total in range(2, height + width + 1):
        i = np.arange(max(1, total - width), min(height, total - 1) + 1)
        j = total - i
        both, up, left = cost[i - 1, j - 1], cost[i - 1, j], cost[i, j - 1]
        step = np.where((both < up) & (both < left), 0, np.where((up < both) & (up < left), 1, 2))
        cost[i, j] = matrix[i - 1, j - 1] + np.choose(step, (both, up, left)).astype(np.float64)
        steps[i, j] = step
    found = []
    i_at, j_at = height, width
    while i_at > 0 or j_at > 0:
        found.append((i_at - 1, j_at - 1))
        step_at = steps[i_at, j_at]
        i_at -= step_at != 2
        j_at -= step_at != 1
    path = np.array(found[::-1], np.int64)
    return path[:, 0], path[:, 1]
