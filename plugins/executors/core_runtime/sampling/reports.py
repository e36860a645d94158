"""Reported numbers of a row: of which logits, and in which form (`core.api.logprobs_mode`).

Owns: the definition of processed logits. Never does: sample, or sort (`core_runtime.sampling.logprobs` does).
Called by: `core_runtime.sampling.sampler`.

Processed logits of tokens that could not be drawn are -inf. At temperature 0 nothing is divided or filtered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import from_numpy

from core.api.logprobs_mode import LogprobsMode, shows_logits, shows_processed
from core.api.messages import TokenLogprobs
from core_runtime.contracts import LogprobsKernel
from core_runtime.sampling.changes.host_logits import HostLogits
from core_runtime.sampling.filters import filtered
from core_runtime.sampling.logprobs import many_logprobs
from core_runtime.sampling.noise import Float32
from core_runtime.sampling.part import Part, between


def report(part: Part, values: HostLogits, kernel: LogprobsKernel | None, mode: LogprobsMode) -> None:
    """Report the requested numbers of rows that have a token.

    values: the part's logits.
    kernel: native kernel for the device of the logits.
    """
    rows = part.rows
    asked = between(rows.reported, part.start, part.stop)
    served = [row for row in asked if row not in rows.errors]
    if not served:
        return
    by_row = dict(zip(rows.reported, rows.wanted, strict=True))
    wanted = [by_row[row] for row in served]
    tokens: list[int] = rows.tokens[served].tolist()
    if shows_processed(mode):
        found = _processed(part, values, served, tokens, wanted, mode)
    else:
        places = [row - part.start for row in served]
        found = many_logprobs(kernel, values, places, tokens, wanted, as_logits=shows_logits(mode))
        if rows.lists:
            for row, place, entry in zip(served, places, found, strict=True):
                _add_listed(entry, rows.state(row).listed, kernel, values, place, mode)
    rows.logprobs.update(zip(served, found, strict=True))


def _add_listed(
    entry: TokenLogprobs,
    listed: Sequence[int],
    kernel: LogprobsKernel | None,
    values: HostLogits,
    place: int,
    mode: LogprobsMode,
) -> None:
    """Add the tokens that a request names to the entry of a row.

    Each is reported as if it had been drawn, so that its number has the bits of a drawn token's.
    """
    count = len(listed)
    if not count:
        return
    more = many_logprobs(kernel, values, [place] * count, listed, [0] * count, as_logits=shows_logits(mode))
    entry.token_ids = [*entry.token_ids, *listed]
    entry.logprobs = [*entry.logprobs, *(one.logprobs[0] for one in more)]
    entry.ranks = [*entry.ranks, *(one.ranks[0] for one in more)]


def _processed(
    part: Part,
    values: HostLogits,
    served: Sequence[int],
    tokens: Sequence[int],
    wanted: Sequence[int],
    mode: LogprobsMode,
) -> list[TokenLogprobs]:
    """Report processed logits or logprobs row by row, because each needs an array as long as the vocabulary."""
    rows = part.rows
    as_logits = shows_logits(mode)
    values.bring([row - part.start for row in served if row not in part.finals])
    found: list[TokenLogprobs] = []
    for row, token, num in zip(served, tokens, wanted, strict=True):
        final = part.final_logits(values, row)
        filters = int(rows.top_k[row]), float(rows.top_p[row]), float(rows.least[row])
        competing = competing_logits(final, float(rows.temperatures[row]), *filters)
        competing_rows = from_numpy(competing[None])
        told = HostLogits(competing_rows)
        found += many_logprobs(None, told, [0], [token], [num], as_logits=as_logits)
        if rows.lists:
            _add_listed(found[-1], rows.state(row).listed, None, told, 0, mode)
    return found


def competing_logits(logits: Float32, temperature: float, top_k: int, top_p: float, least: float) -> Float32:
    """Return logits divided by the temperature, -inf for tokens that a filter removes: float32 [V].

    logits: float32 [V], after stages and masks; the largest is finite.
    top_k, top_p, least: filters as in a `RaceKernel`.
    """
    if temperature == 0:
        return logits
    heat = np.float32(temperature)
    with np.errstate(over="ignore"):  # far below the best with a tiny temperature: -inf is right
        # The filters compare z, as in the race; reported logits keep their own scale.
        z = (logits - logits.max()) / heat
        scaled = logits / heat
    ids, _ = filtered(z, top_k, top_p, least)
    competing: Float32 = np.full_like(logits, -np.inf)
    competing[ids] = scaled[ids]
    return competing
