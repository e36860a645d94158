"""Stop conditions of a sequence.

Owns: the stop conditions that need token ids only. Never does: know text; the detokenizer checks stop strings.
Called by: the scheduler's update.
"""

from __future__ import annotations

from core.api.messages import FinishReason
from core.scheduler.sequence import SequenceState


def append_tokens(sequence: SequenceState, token_ids: list[int]) -> FinishReason | None:
    """Append sampled tokens one by one until the sequence ends; tokens after the end are not appended.

    Returns `stop` for a stop token beyond `min_tokens`, `length` at `max_tokens` or the longest sequence, else None.
    """
    known = sequence.token_ids
    stop_token_ids = sequence.stop_token_ids
    for token_id in token_ids:
        known.append(token_id)
        length = len(known)
        if token_id in stop_token_ids and length > sequence.min_stop_length:
            return "stop"
        if length >= sequence.max_length:
            return "length"
    return None


def stop_reason(sequence: SequenceState) -> int | None:
    """Return the user's stop token that ended the sequence; None for an end-of-sequence token."""
    token_id = sequence.token_ids[-1]
    return None if token_id in sequence.request.eos_token_ids else token_id
