"""The rules of tokens that a request brings for the logits processor `whisper`. Torch-free.

Owns: their form. Never does: apply them (`core_media.sound.token_rules` does). Called by: transcriptions, the processor.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from core.api.sampling_params import SamplingParams
from core_media.sound.config import SoundConfig

ARGUMENT: Final = "whisper"


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of one request.

    end:      token that ends a transcript; tokens of text are smaller.
    no_times: token after which those of times follow.
    times:    whether times are sampled; else tokens are only suppressed.
    latest_first: most steps of time before the first text, or None.
    suppressed, suppressed_first: tokens that are never sampled, and those that are not sampled first.
    spoken:   tokens of a window whose times are asked for, instead of a text. frames: of the window with sound.
    forced:   the only token that may come at each place: the time of each of `spoken`, which the engine fills in.
    """

    end: int
    no_times: int
    times: bool
    latest_first: int | None = None
    suppressed: list[int] = []
    suppressed_first: list[int] = []
    spoken: list[int] = []
    frames: int = 0
    forced: list[int] = []


def rules_of(config: SoundConfig, *, times: bool) -> dict[str, Any]:
    """Return the `extra_args` of a request for the text of a window."""
    suppressed, first = list(config.suppressed), list(config.suppressed_first)
    rules = Rules(config.end, config.no_times, times, config.latest_first, suppressed, first)
    return {ARGUMENT: msgspec.to_builtins(rules)}


def spoken_rules(config: SoundConfig, tokens: list[int], frames: int) -> dict[str, Any]:
    """Return the `extra_args` of a request for the times of a window's tokens."""
    rules = Rules(config.end, config.no_times, times=False, spoken=tokens, frames=frames)
    return {ARGUMENT: msgspec.to_builtins(rules)}


def asked_times(params: SamplingParams) -> Rules | None:
    """Return the rules of a request that asks for times of tokens; None: it asks for a text."""
    given = (params.extra_args or {}).get(ARGUMENT)
    rules = None if given is None else msgspec.convert(given, Rules)
    return rules if rules is not None and rules.spoken else None


def with_times(params: SamplingParams, rules: Rules, steps: Sequence[int]) -> SamplingParams:
    """Return the parameters with which the engine answers the times, as its tokens of times."""
    forced = [rules.no_times + 1 + step for step in steps]
    made = copy.copy(params)
    made.extra_args = {ARGUMENT: msgspec.to_builtins(msgspec.structs.replace(rules, forced=forced))}
    return made
