"""The part of a text that each vector of late chunking belongs to.

Owns: these objects, without numpy, which processes that only read requests do not load. Never does: pool. Called by:
`core_frontend.prompts.late_chunks`, and the code that passes them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LateChunk:
    """One part of a text.

    token_range: index of its first token, and of the one after its last.
    char_range: the same in characters; None: it has only special tokens, or the text is not known.
    """

    token_range: tuple[int, int]
    char_range: tuple[int, int] | None


@dataclass(slots=True)
class LateChunkingMetadata:
    """The parts of a text in order, with the maximum tokens per part and the total number of tokens."""

    chunk_size: int
    input_tokens: int
    chunks: list[LateChunk]
