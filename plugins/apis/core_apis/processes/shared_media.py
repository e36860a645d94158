"""The memory in which the API processes of one server share processed media (`--mm-processor-cache-type shm`).

Owns: whether there is one, and telling an API process of it. Never does: read or write it (`core_media` does). Called by: the
supervisor, whose API processes inherit the memory.
"""

from __future__ import annotations

import msgspec

from core.api.config import EngineConfig
from core_media.config import media_of
from core_media.processing.shared_cache import shared_memory


def shared_media(config: EngineConfig) -> int | None:
    """Return the descriptor of new memory, which the caller closes; None: each process keeps its own items. Raises OSError."""
    media = media_of(config)
    if media is None or not media.shares_cache or not media.processor_cache_bytes:
        return None
    return shared_memory(media.processor_cache_bytes)


def with_shared_media(config: EngineConfig, descriptor: int | None) -> EngineConfig:
    """Return the configuration of an API process that has inherited the memory."""
    media = media_of(config)
    if descriptor is None or media is None:
        return config
    return msgspec.structs.replace(config, media=msgspec.structs.replace(media, shared_cache=descriptor))
