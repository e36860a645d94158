"""The rules of tokens that a request brings for the logits processor `whisper`. Torch-free.

Owns: their form. Never does: apply them (`core_media.sound.token_rules` does). Called by: transcriptions, the processor.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from core_media.sound.config import SoundConfig

ARGUMENT: Final = "whisper"


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of one request.

    end:      token that ends a transcript; tokens of text are smaller.
    no_times: token after which those of times follow.
    times:    whether times are sampled; else tokens are only suppressed.
    latest_first: most steps of time before the first text, or None.
    suppressed, suppressed_first: tokens that are never sampled, and those that are not sampled first.
    """

    end: int
    no_times: int
    times: bool
    latest_first: int | None = None
    suppressed: list[int] = []
    suppressed_first: list[int] = []


def rules_of(config: SoundConfig, *, times: bool) -> dict[str, Any]:
    """Return the `extra_args` of a request for the text of a window."""
    suppressed, first = list(config.suppressed), list(config.suppressed_first)
    rules = Rules(config.end, config.no_times, times, config.latest_first, suppressed, first)
    return {ARGUMENT: msgspec.to_builtins(rules)}
