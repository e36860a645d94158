"""The parts of prompts whose tokens see each other in both directions.

Owns: which parts these are, and the refusal of those that no step could compute. Never does: compute one. Called by: what
prepares requests, the observer of media.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.api.messages import MediaItem
from core_media.config import AUDIO, MediaConfig

Spans = list[tuple[int, int]]


def spans_of(token_ids: Sequence[int], items: Sequence[MediaItem], config: MediaConfig) -> Spans:
    """Return the spans of a prompt: the whole of it, or each run of rows of a picture or of a video's frame, as the model's
    family has them.
    """
    if config.two_sided == "prompt" and items:
        return [(0, len(token_ids))]
    if config.two_sided != "rows":
        return []
    found: Spans = []
    seen = {place.token_id for name, place in config.places.items() if name != AUDIO}
    for item in items:
        if item.token_id not in seen:
            continue
        is_row = np.asarray(token_ids[item.start : item.stop]) == item.token_id
        edges = np.flatnonzero(np.diff(is_row, prepend=False, append=False)) + item.start
        found += zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return found


def why_too_long(spans: Spans, config: MediaConfig) -> str:
    """Return why no step could compute one of the spans; empty if each fits."""
    longest = max((stop - start for start, stop in spans), default=0)
    if config.window and longest > config.window:
        return (
            f"{longest} tokens of the prompt see each other in both directions, but the model has layers whose windows hold "
            f"{config.window}. Shorten the prompt, or leave a picture out."
        )
    if longest <= config.max_span:
        return ""
    return (
        f"{longest} tokens of the prompt see each other in both directions, so one step must compute them; the steps of this "
        f"server have room for {config.max_span}. Raise --max-num-batched-tokens by {longest - config.max_span} or more."
    )
