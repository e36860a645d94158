"""The keys of `--speculative-config` that control the number of drafts, for every proposer.

Owns: `CONTROL_KEYS`, and the part of the scheduler's configuration that follows. Never does: check values (rules do).
Called by: the engine's configuration, and the table of plugins' arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONTROL_KEYS: Mapping[str, str] = {
    "num_speculative_tokens": "most drafts of a sequence in a step",
    "adaptive": "whether each step has as many as pay by its measured time, true unless given; false: always the most",
    "disable_by_batch_size": "with more requests than so many waiting and running, new ones have no drafts",
    "num_speculative_tokens_per_batch_size": "rows of [first size of the batch, last size, most drafts of a sequence]",
}
"""Keys → their meaning."""


def draft_settings(speculation: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `SchedulerConfig`. Values that a rule reports as wrong count as absent.

    speculation: the argument with underscores in its keys, and derived values.
    """
    most = speculation.get("num_speculative_tokens")
    limit = speculation.get("disable_by_batch_size")
    length = speculation.get("max_model_len")
    rows = speculation.get("num_speculative_tokens_per_batch_size")
    return {
        "num_speculative_tokens": most if isinstance(most, int) else 0,
        "adaptive_drafts": speculation.get("adaptive", True) is not False,
        "disable_drafts_by_batch_size": limit if isinstance(limit, int) else 0,
        "drafts_by_batch_size": batch_sizes(rows) or (),
        "draft_max_model_len": length if isinstance(length, int) else 0,
    }


def batch_sizes(rows: Any) -> tuple[tuple[int, int, int], ...] | None:
    """Return the rows of `num_speculative_tokens_per_batch_size` in order, None for invalid values.

    Valid rows have batch sizes of at least 1 that do not overlap, and numbers of drafts of at least 0.
    """
    if not isinstance(rows, list | tuple):
        return None
    found: list[tuple[int, int, int]] = []
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) != 3:
            return None
        if any(not isinstance(number, int) or isinstance(number, bool) for number in row):
            return None
        first, last, most = row
        found.append((first, last, most))
    found.sort()
    end = 0
    for first, last, most in found:
        if not end < first <= last or most < 0:
            return None
        end = last
    return tuple(found)
