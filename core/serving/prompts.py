"""From request bodies to prompts with token ids.

Owns: tokenizing texts and rendering conversations for the server. Never does: check lengths (the engine does).
Called by: the completion and tokenize routes.
"""

from __future__ import annotations

import asyncio

from core.serving.context import ServingContext
from core.serving.generation import Prompt
from core.serving.protocol.messages import Conversation

LONG_TEXT = 50_000  # characters; longer texts are tokenized in a thread, so that other streams go on


async def text_prompt(context: ServingContext, text: str, add_special_tokens: bool) -> Prompt:
    """`text` with its token ids."""
    encode = context.engine.tokenizer.encode
    if len(text) > LONG_TEXT:
        return Prompt(text, await asyncio.to_thread(encode, text, add_special_tokens))
    return Prompt(text, encode(text, add_special_tokens))


async def chat_prompt(context: ServingContext, conversation: Conversation, add_special_tokens: bool) -> Prompt:
    """The rendered conversation with its token ids. Raises RequestError when the template refuses it."""
    text = context.template.render(
        conversation.messages or [],
        add_generation_prompt=conversation.opens_answer,
        continue_final_message=bool(conversation.continue_final_message),
        documents=conversation.documents,
        **conversation.template_variables(),
    )
    return await text_prompt(context, text, add_special_tokens)
