"""The adapter of a prompt with media whose request names none (`--default-mm-loras`).

Owns: its choice by the prompt's modalities. Never does: load an adapter. Called by: the run of a request, `LLM`, `AsyncLLM`.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.errors import RequestError
from core.api.messages import MediaItem
from core_media.config import NOUNS, MediaConfig


def adapter_of(items: Sequence[MediaItem], config: MediaConfig | None) -> str:
    """Return the name of the adapter of a prompt with these items; empty: it has none.

    Raises RequestError for modalities with different ones, since a prompt has one adapter.
    """
    if config is None or not config.adapters:
        return ""
    modalities = {place.token_id: name for name, place in config.places.items()}
    present = dict.fromkeys(modalities[item.token_id] for item in items if item.token_id in modalities)
    found = {config.adapters[name]: name for name in present if name in config.adapters}
    if len(found) > 1:
        kinds = " and ".join(f"{NOUNS[name]}s" for name in found.values())
        raise RequestError(
            f"The prompt has {kinds}, which have different adapters (--default-mm-loras), and a prompt has one; name one of "
            f"them: {', '.join(found)}.",
            param="model",
        )
    return next(iter(found), "")
