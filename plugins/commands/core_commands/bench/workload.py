"""The requests of a measurement.

Owns: `Prompt`, and length estimates. Never does: send. Called by: datasets (make), the load (sends), offline runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHARACTERS_PER_TOKEN = 4.0
"""Average for English text; used only where a dataset gives no length, since no tokenizer is called."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The content of one request.

    text: of the prompt, or of the user's message.
    max_tokens: limit on the answer's tokens.
    extra: further fields of the body.
    """

    text: str
    max_tokens: int
    extra: Mapping[str, Any] = field(default_factory=dict)


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text; at least 1."""
    return max(1, round(len(text) / CHARACTERS_PER_TOKEN))
