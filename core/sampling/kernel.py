"""The sampling kernel: one token for each row of logits. A provider's, or the reference in numpy.

Owns: `SamplingKernel` and its reference. Never does: adjust logits, or know sequences. Called by: `core.sampling.sampler`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from core.plugin.contracts import MaskedRaceKernel, RaceKernel
from core.sampling.bitmask import apply_bitmask
from core.sampling.filters import LOWEST, filtered
from core.sampling.noise import Float32, Ids, NoiseKey
from core.sampling.race import Entrant, winners

SamplingKernel = RaceKernel
"""What turns logits into tokens is the contract of providers' kernels; `numpy_race` says what they compute."""

MaskedKernel = MaskedRaceKernel
"""The same with token masks."""

NO_TOKEN: Final = -1


def numpy_race(
    logits: Tensor,
    which: Tensor,
    keys: Tensor,
    temperatures: Tensor,
    out: Tensor,
    filters: tuple[Tensor, Tensor, Tensor] | None = None,
) -> None:
    """The reference of the `RaceKernel` contract, for logits of any type on any device; the other arguments on the host."""
    if logits.device.type != "cpu" and not temperatures.any():
        _largest(logits, which, out)
        return
    values: Float32 = logits.float().cpu().numpy()
    rows: Ids = which.numpy()
    tokens: Ids = out.numpy()
    words: Ids = keys.numpy()
    heat: Float32 = temperatures.numpy()
    # Callers name rows in rising order: as many rows as logits are all of them, and need no copy.
    competing = values if len(rows) == len(values) else values[rows]
    tokens[:] = competing.argmax(axis=1)
    tops: Float32 = values[rows, tokens]
    tokens[~np.isfinite(tops)] = NO_TOKEN

    hot = (tokens >= 0) & (heat > 0)
    racing = hot.nonzero()[0]
    entrants: list[Entrant] = []
    for i in racing.tolist():
        row = values[rows[i]]
        with np.errstate(over="ignore"):  # far below the best with a tiny temperature: -inf is right
            z = (row - tops[i]) / heat[i]
        limits = None if filters is None else _limits(filters, i)
        key = _key(words[i])
        entrants.append(_entrant(key, z, limits))
    tokens[racing] = winners(entrants)


def masked_race(
    race: SamplingKernel,
    logits: Tensor,
    which: Tensor,
    keys: Tensor,
    temperatures: Tensor,
    out: Tensor,
    filters: tuple[Tensor, Tensor, Tensor] | None,
    masks: tuple[Tensor, Tensor],
) -> None:
    """What a `MaskedRaceKernel` does, by a kernel that takes no masks: on a copy of the rows."""
    words, index = masks
    masked = (index >= 0).nonzero()[:, 0]
    copied = logits[which.to(logits.device)].float().cpu()
    values: Float32 = copied.numpy()
    finite = np.isfinite(values.max(axis=1))
    for row in masked.tolist():
        mask = words[index[row]].numpy()
        apply_bitmask(values[row : row + 1], mask[None])
    every = torch.arange(len(which))
    race(copied, every, keys, temperatures, out, filters)
    # bad logits of the model win over what the masks made of them
    out[torch.from_numpy(~finite)] = NO_TOKEN


def numpy_masked_race(
    logits: Tensor,
    which: Tensor,
    keys: Tensor,
    temperatures: Tensor,
    out: Tensor,
    filters: tuple[Tensor, Tensor, Tensor] | None = None,
    masks: tuple[Tensor, Tensor] | None = None,
) -> None:
    """The reference of the `MaskedRaceKernel` contract; all arguments on the host."""
    arguments = (logits, which, keys, temperatures, out, filters)
    if masks is None:
        numpy_race(*arguments)
    else:
        masked_race(numpy_race, *arguments, masks)


def _largest(logits: Tensor, which: Tensor, out: Tensor) -> None:
    """The ids of the largest logits; nothing but one number a row leaves the device."""
    rows = which.to(logits.device)
    tops, ids = torch.max(logits[rows], dim=1)
    finite = torch.isfinite(tops)
    out.copy_(torch.where(finite, ids, NO_TOKEN))


def _limits(filters: tuple[Tensor, Tensor, Tensor], row: int) -> tuple[int, float, float] | None:
    """top-k, top-p and the smallest z of a row; None when it has no filter."""
    top_k = int(filters[0][row])
    top_p = float(filters[1][row])
    least = float(filters[2][row])
    if top_k <= 0 and top_p >= 1.0 and least <= LOWEST:
        return None
    return top_k, top_p, least


def _entrant(key: NoiseKey, z: Float32, limits: tuple[int, float, float] | None) -> Entrant:
    if limits is None:
        return Entrant(key, z)
    top_k, top_p, least = limits
    ids, kept = filtered(z, top_k, top_p, least)
    return Entrant(key, kept, ids)


def _key(words: Ids) -> NoiseKey:
    low, high, index, choice, purpose = words.tolist()
    seed = high << 32 | low
    return NoiseKey(seed, index, choice, purpose)
