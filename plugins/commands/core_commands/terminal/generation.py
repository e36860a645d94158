"""One streamed answer of /v1/chat/completions or /v1/completions, as pieces for the terminal.

Owns: times and counts of one answer. Never does: print, or keep a conversation.
Called by: chat, complete.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from core_commands.client.chunks import Piece, chunks
from core_commands.client.endpoint import Endpoint, EndpointError
from core_commands.client.refusal import refusal


@dataclass(slots=True)
class Counts:
    """Counters of one answer, updated as it arrives.

    first_s, total_s: seconds until the first and the last part.
    finish_reason: the server's; empty until then.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    first_s: float = 0.0
    total_s: float = 0.0
    finish_reason: str = ""

    @property
    def line(self) -> str:
        """Format the counters as a line for the user."""
        decoding = self.total_s - self.first_s
        speed = f", {(self.output_tokens - 1) / decoding:.1f} tokens/s" if self.output_tokens > 1 and decoding else ""
        cut = ", cut at the most tokens" if self.finish_reason == "length" else ""
        return f"{self.prompt_tokens} tokens in, {self.output_tokens} out, first after {self.first_s:.2f} s{speed}{cut}"


async def generate(endpoint: Endpoint, path: str, body: Mapping[str, Any], counts: Counts) -> AsyncIterator[Piece]:
    """Yield the parts of an answer. counts: updated meanwhile. Raises EndpointError with the server's own message."""
    wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
    begin = time.perf_counter()
    async with endpoint.ask("POST", path, msgspec.json.encode(wanted)) as answer:
        if answer.status != 200:
            raise EndpointError(await refusal(answer))
        async for chunk, arrived in chunks(answer):
            if chunk.usage is not None:
                counts.prompt_tokens = chunk.usage.prompt_tokens
                counts.output_tokens = chunk.usage.completion_tokens
            for choice in chunk.choices:
                counts.finish_reason = choice.finish_reason or counts.finish_reason
            for piece in chunk.pieces():
                counts.total_s = arrived - begin
                counts.first_s = counts.first_s or counts.total_s
                yield piece
