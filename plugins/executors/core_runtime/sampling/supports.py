"""The tokens that could have been drawn for a row: its support.

Owns: the definition of a support. Never does: draw, or filter (`core_runtime.sampling.reports` says what competes).
Called by: `core_runtime.sampling.sampler`, in engines whose outputs carry supports.
"""

from __future__ import annotations

import numpy as np

from core_runtime.sampling.changes.host_logits import HostLogits
from core_runtime.sampling.part import Part
from core_runtime.sampling.reports import competing_logits


def find_supports(part: Part, values: HostLogits) -> None:
    """Add the support of each row that has a token to `SampleRows.supports`: what is left behind biases, penalties, masks,
    processors and filters; at temperature 0 the token alone.

    values: the part's logits.
    """
    rows = part.rows
    served = [row for row in range(part.start, part.stop) if row not in rows.errors and rows.tokens[row] >= 0]
    random = [row for row in served if rows.temperatures[row] > 0]
    values.bring([row - part.start for row in random if row not in part.finals])
    for row in served:
        if rows.temperatures[row] == 0:
            rows.supports[row] = rows.tokens[row : row + 1].copy()
            continue
        filters = int(rows.top_k[row]), float(rows.top_p[row]), float(rows.least[row])
        competing = competing_logits(part.final_logits(values, row), float(rows.temperatures[row]), *filters)
        rows.supports[row] = np.flatnonzero(competing > -np.inf)
