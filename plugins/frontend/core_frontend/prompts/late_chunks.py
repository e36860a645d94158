"""The part of a text that each vector of late chunking belongs to.

Owns: that list. Never does: pool. Called by: `LLM`, `AsyncLLM` and the server.
"""

from __future__ import annotations

from collections.abc import Sequence

from core_frontend.api.late_chunking import LateChunk, LateChunkingMetadata

Span = tuple[int, int]


def late_chunks(num_tokens: int, size: int, spans: Sequence[Span] | None) -> LateChunkingMetadata:
    """Return the parts of a text of `num_tokens` tokens, each of `size` tokens except the last one.

    spans: the index of each token's first character, and of the one after its last; equal for a special token. None:
        unknown.
    """
    chunks = []
    for begin in range(0, num_tokens, size):
        end = min(begin + size, num_tokens)
        written = [span for span in (spans or ())[begin:end] if span[0] < span[1]]
        characters = None
        if written:
            characters = min(first for first, _ in written), max(last for _, last in written)
        chunks.append(LateChunk((begin, end), characters))
    return LateChunkingMetadata(size, num_tokens, chunks)
