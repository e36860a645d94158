"""Both sides of a mismatch in files.

Owns: their names and contents. Never does: compare. Called by: the audit.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core_observers.engine.audit.row import Difference

MOST_FILES = 64


@dataclass(frozen=True, slots=True)
class Place:
    """What was computed again. first, num_tokens: the tokens of the request that were compared. blocks: number of blocks.

    token_ids: all tokens of the request that were known.
    """

    request_id: str
    first: int
    num_tokens: int
    blocks: int
    token_ids: Sequence[int]


def write(directory: Path, place: Place, found: Difference, numerics: str, *, ids: bool) -> Path | None:
    """Write one mismatch; returns its file, or None where as many are kept as may be. Raises OSError."""
    number = len(list(directory.glob("audit-*.json")))
    if number >= MOST_FILES:
        return None
    told: dict[str, Any] = {
        "kind": found.kind,
        "time": time.time(),
        "numerics": numerics,
        "request_id": place.request_id,
        "num_computed_tokens": place.first,
        "num_tokens": place.num_tokens,
        "blocks": place.blocks,
    }
    if isinstance(found.served, bytes) and isinstance(found.alone, bytes):
        told |= {"served": found.served.hex(), "alone": found.alone.hex()}
    elif ids:
        told |= {"served": repr(found.served), "alone": repr(found.alone)}
    if ids:
        told["token_ids"] = list(place.token_ids)
    path = directory / f"audit-{os.getpid()}-{number}.json"
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        json.dump(told, file)
    return path
