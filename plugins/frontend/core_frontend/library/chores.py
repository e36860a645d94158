"""Small functions that scripts written for vLLM import and that have little to do here.

Owns: these functions. Never does: configure logging, or end processes. Called by: such scripts, through
`core_compat.aliases`.
"""

from __future__ import annotations

import gc
import logging
import uuid
from collections.abc import Sequence
from enum import StrEnum

SHOWN_NUMBERS = 4


class UsageContext(StrEnum):
    """The builder of an engine. Accepted where vLLM accepts it; no usage is reported."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


def init_logger(name: str) -> logging.Logger:
    """Return the logger of this name."""
    return logging.getLogger(name)


def random_uuid() -> str:
    """Return 32 random hexadecimal digits, for a request's id."""
    return uuid.uuid4().hex


Numbers = Sequence[float] | Sequence["Numbers"]
"""A vector, or vectors of vectors."""


def print_embeddings(embeds: Numbers, prefix: str = "Embeddings") -> None:
    """Print the first numbers of a vector, or of each of several vectors, and how many there are."""
    print(f"{prefix}: {_shown(embeds)} (size={len(embeds)})")


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Collect garbage. An `LLM` releases its memory when it is closed.

    shutdown_ray: no effect: an engine that has joined a Ray cluster leaves it when it is closed.
    """
    gc.collect()


def _shown(numbers: Numbers) -> str:
    """Return the first numbers, or vectors, as text."""
    first = [f"{each:.4f}" if isinstance(each, int | float) else _shown(each) for each in numbers[:SHOWN_NUMBERS]]
    more = ", ..." if len(numbers) > SHOWN_NUMBERS else ""
    return f"[{', '.join(first)}{more}]"
