"""A step on its way to the ranks of several stages: what rank 0 has drawn since the last one, then the plan.

Owns: the form of both in one payload. Never does: send. Called by: the executor (writes), the other ranks (read).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from core_runtime.executor.stage import Outcome

LENGTH_BYTES: Final = 4
_OUTCOMES: Final = msgspec.msgpack.Decoder(list[Outcome])


def encode_step(outcomes: Sequence[Outcome], plan: bytes) -> bytes:
    """Return both as bytes."""
    learned = msgspec.msgpack.encode(outcomes)
    return len(learned).to_bytes(LENGTH_BYTES, "little") + learned + plan


def decode_step(payload: bytes) -> tuple[list[Outcome], bytes]:
    """Return outcomes and plan."""
    end = LENGTH_BYTES + int.from_bytes(payload[:LENGTH_BYTES], "little")
    return _OUTCOMES.decode(payload[LENGTH_BYTES:end]), payload[end:]
