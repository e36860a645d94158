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


def encode_step(number: int, outcomes: Sequence[Outcome], plan: bytes) -> bytes:
    """Return both as bytes. number: of the step; those of earlier ones are sent as distances, which stay small."""
    learned = msgspec.msgpack.encode([_since(outcome, number) for outcome in outcomes])
    return len(learned).to_bytes(LENGTH_BYTES, "little") + learned + plan


def decode_step(number: int, payload: bytes) -> tuple[list[Outcome], bytes]:
    """Return outcomes and plan. number: of the step."""
    end = LENGTH_BYTES + int.from_bytes(payload[:LENGTH_BYTES], "little")
    return [_since(outcome, number) for outcome in _OUTCOMES.decode(payload[LENGTH_BYTES:end])], payload[end:]


def _since(outcome: Outcome, number: int) -> Outcome:
    return msgspec.structs.replace(outcome, number=number - outcome.number)
