"""The sampling kernel, which draws one token for each row of logits: a provider's, or the reference in numpy.

Owns: `SamplingKernel` and its reference. Never does: adjust logits, or know sequences. Called by:
`core_runtime.sampling.sampler`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from core_runtime.contracts import MaskedRaceKernel, RaceCall, RaceKernel
from core_runtime.sampling.bitmask import apply_bitmask
from core_runtime.sampling.filters import LOWEST, filtered
from core_runtime.sampling.noise import Float32, Ids, NoiseKey
from core_runtime.sampling.race import Entrant, winners

SamplingKernel = RaceKernel
"""The kernel that turns logits into tokens: the contract of providers, with `numpy_race` as its reference."""

MaskedKernel = MaskedRaceKernel
"""A sampling kernel that also takes token masks."""

NO_TOKEN: Final = -1


def numpy_race(*arguments: Any) -> None:
    """Run the reference of the `RaceKernel` contract, for logits of any type and device; the other arguments are on the
    host.
    """
    call = RaceCall(*arguments)
    if call.logits.device.type != "cpu" and not call.temperatures.any():
        # Greedy rows need one number each; copying whole rows to the host would cost far more.
        _largest(call.logits, call.which, call.out)
        return
    values: Float32 = call.logits.float().cpu().numpy()
    rows: Ids = call.which.numpy()
    tokens: Ids = call.out.numpy()
    words: Ids = call.keys.numpy()
    heat: Float32 = call.temperatures.numpy()
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
        limits = None if call.filters is None else _limits(call.filters, i)
        key = _key(words[i])
        entrants.append(_entrant(key, z, limits))
    tokens[racing] = winners(entrants)


def masked_race(race: SamplingKernel, *arguments: Any) -> None:
    """Do the work of a `MaskedRaceKernel` with a kernel that takes no masks, on a copy of the rows.

    arguments: fields of a `RaceCall` with masks; all but the logits are on the host.
    """
    call = RaceCall(*arguments)
    assert call.masks is not None, "rows without masks race without a copy"
    words, index = call.masks
    masked = (index >= 0).nonzero()[:, 0]
    copied = call.logits[call.which.to(call.logits.device)].float().cpu()
    values: Float32 = copied.numpy()
    # Before the masks, which add -inf.
    finite = np.isfinite(values.max(axis=1))
    for row in masked.tolist():
        mask = words[index[row]].numpy()
        apply_bitmask(values[row : row + 1], mask[None])
    every = torch.arange(len(call.which))
    race(copied, every, call.keys, call.temperatures, call.out, call.filters)
    # bad logits of the model are reported in preference to the result of the masks
    call.out[torch.from_numpy(~finite)] = NO_TOKEN


def numpy_masked_race(*arguments: Any) -> None:
    """Run the reference of the `MaskedRaceKernel` contract; all arguments are on the host."""
    if RaceCall(*arguments).masks is None:
        numpy_race(*arguments)
    else:
        masked_race(numpy_race, *arguments)


def _largest(logits: Tensor, which: Tensor, out: Tensor) -> None:
    """Write the ids of the largest logits; only one number per row leaves the device."""
    rows = which.to(logits.device)
    tops, ids = torch.max(logits[rows], dim=1)
    finite = torch.isfinite(tops)
    out.copy_(torch.where(finite, ids, NO_TOKEN))


def _limits(filters: tuple[Tensor, Tensor, Tensor], row: int) -> tuple[int, float, float] | None:
    """Return top-k, top-p and the smallest z of a row; None if it has no filter."""
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
