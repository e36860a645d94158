"""The requests of a measurement.

Owns: `Prompt`, and estimates of lengths. Never does: send. Called by: datasets (make), the load (sends), offline runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHARACTERS_PER_TOKEN = 4.0
"""Of English text, about; only where a dataset says no length, since no tokenizer is asked."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request.

    text: of the prompt, or of the user's message.
    max_tokens: most tokens of the answer.
    extra: further fields of the body.
    """

    text: str
    max_tokens: int
    extra: Mapping[str, Any] = field(default_factory=dict)


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has; at least 1."""
    return max(1, round(len(text) / CHARACTERS_PER_TOKEN))
