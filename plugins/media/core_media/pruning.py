"""Which rows of a video are left out, as Efficient Video Sampling chooses them (arXiv 2510.14624).

Owns: their number, and the choice. Never does: compute a row, or a position. Called by: the processing process (the number,
before any row is computed), the observer of media.

A row is left out because it is like the one in the same place of the frame before; what is kept keeps its position. The
number depends on the video's shape alone, so a prompt has its tokens before the tower has seen it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def num_kept(count: int, time: int, rate: float) -> int:
    """Return how many of a video's rows are kept, at least those of its first frame.

    count: of its rows. time: of its frames, as rows in time. rate: share that is left out, from 0 to below 1.
    """
    return max(count // time, int(count * (1 - rate)))


def pruned(rows: bytes, grid: Sequence[int], rate: float) -> tuple[bytes, list[int]]:
    """Return a video's kept rows, and its grid with their indices, see `MediaItem`. rate: see `num_kept`.

    Raises ValueError for rows that do not fit the grid.
    """
    time, height, width, *ends = grid
    count = time * height * width
    values = np.frombuffer(rows, np.float32).reshape(count, -1)
    kept = kept_rows(values, time, rate)
    return values[kept].tobytes(), [time, height, width, *(ends or range(1, time + 1)), *(kept + 1).tolist()]


def kept_rows(rows: NDArray[np.float32], time: int, rate: float) -> NDArray[np.int64]:
    """Return the indices of the rows that are kept, rising. rows: [time * height * width, size].

    The first frame is kept, then what has the least cosine similarity; of equal ones the earlier.
    """
    import torch  # the processing process needs the number alone

    frames = torch.from_numpy(rows.copy()).view(time, len(rows) // time, -1)
    unlike = 1 - torch.nn.functional.cosine_similarity(frames[1:], frames[:-1], dim=-1)
    first = torch.full((1, frames.shape[1]), float("inf"))
    order = torch.argsort(torch.cat([first, unlike]).view(-1), descending=True, stable=True).numpy()
    return np.sort(order[: num_kept(len(rows), time, rate)]).astype(np.int64)
