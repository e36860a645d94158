"""Which part of a text each vector of late chunking is of.

Owns: these objects, without numpy, which processes that only read requests do without. Never does: pool.
Called by: `core_frontend.late_chunks`, and whatever passes them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LateChunk:
    """One part of a text.

    token_range: its first token, and the one behind its last.
    char_range: the same of characters; None: it has none but special tokens, or the text is not known.
    """

    token_range: tuple[int, int]
    char_range: tuple[int, int] | None


@dataclass(slots=True)
class LateChunkingMetadata:
    """The parts of a text in order, the most tokens of each, and the tokens of all."""

    chunk_size: int
    input_tokens: int
    chunks: list[LateChunk]
