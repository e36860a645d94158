"""The events of streamed conversations and completions, from prepared requests and their outputs.

Owns: the first chunk of each. Never does: run requests, or send. Called by: the routes, and `core.serving.durable`, which
writes streams of earlier servers again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from core.serving.answer_stream import AnswerStream
from core.serving.chat_writer import ChatWriter
from core.serving.completion_writer import CompletionWriter
from core.serving.context import ServingContext
from core.serving.prepared import PreparedChat, PreparedCompletion
from core.serving.prompt_output import PromptOutput
from core.serving.protocol.chat import ChatChunk
from core.serving.protocol.completions import CompletionResponse

Outputs = AsyncGenerator[PromptOutput, None]


def streamed_events(
    context: ServingContext,
    prepared: PreparedChat | PreparedCompletion,
    answer_id: str,
    created: int,
    first: PromptOutput,
    outputs: Outputs,
) -> AsyncGenerator[bytes, None]:
    """`data: ...` blocks. created: seconds since the epoch. first: the first output; outputs: those behind it."""
    stream = AnswerStream(context, prepared.body, first, outputs)
    if isinstance(prepared, PreparedChat):
        chunk = ChatChunk(
            id=answer_id,
            object="chat.completion.chunk",
            created=created,
            model=prepared.model,
            choices=[],
            system_fingerprint=context.weight_version,
        )
        return stream.events(chunk, ChatWriter(context, prepared))
    head = CompletionResponse(
        id=answer_id,
        object="text_completion",
        created=created,
        model=prepared.model,
        choices=[],
        system_fingerprint=context.weight_version,
    )
    return stream.events(head, CompletionWriter(context, prepared.body, prepared.prompts))
