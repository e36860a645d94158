"""The prompts of conversations that are pooled.

Owns: rendering them by the chat template, or without one for parts that stand alone. Never does: process a picture
(`core_apis.prepare.pictures` does), or pool. Called by: `core_apis.pooling.preparation`.
"""

from __future__ import annotations

from typing import Any

from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import Prompt
from core_apis.protocol.messages import message_text
from core_apis.protocol.pooled_conversation import SYSTEM, PooledConversation
from core_media.reading.given import set_options
from core_media.reading.parts import take_media
from core_tokens.chat.written_text import WrittenText, joined, joined_by, plain, spans_of, written


class ConversationRenderer:
    """The renderer of one server. preparation: the steps that all bodies have in common."""

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._settings = preparation.settings

    def prompt(self, conversation: PooledConversation, special: bool | None, *, is_cut: bool) -> Prompt:
        """Return the prompt of a conversation, whose pictures are not processed yet. Raises RequestError.

        special: whether the tokenizer adds special tokens; None: the request does not say. is_cut: whether its first tokens
            may be all that counts.
        """
        texts = self._preparation.texts
        messages = conversation.messages = list(conversation.messages or [])
        param = conversation.param
        pictures = take_media(messages, self._settings.media, self._settings.media_refusal, param)
        set_options(pictures, conversation.mm_processor_kwargs)
        use = conversation.check_conversation(self._settings.limits)
        is_bare = conversation.is_parts and self._preparation.template.source is None
        text = self._bare(messages) if is_bare else self._preparation.render(conversation, use)
        adds = is_bare if special is None else special
        is_cut = is_cut and not pictures
        encoded = texts.rendered(texts.first_part(text) if is_cut else text, adds)
        return Prompt(
            plain(text),
            encoded.ids,
            control_text=encoded.control_text,
            pictures=pictures,
            written=spans_of(text) if pictures else (),
            special=adds,
        )

    def _bare(self, messages: list[dict[str, Any]]) -> WrittenText:
        """Return parts as a model without a chat template reads them: a line each, with the placeholder of each picture."""
        shown = {} if self._settings.media is None else self._settings.media.shown
        pieces: list[str] = []
        for message in messages:
            if message["role"] in SYSTEM:  # the checkpoint's prompt, which stands directly in front
                pieces.append(message_text(message))
                continue
            parts = [part["text"] if part["type"] == "text" else written(shown[part["type"]])
                     for part in message["content"]]  # fmt: skip
            pieces.append(joined_by("\n", parts))
        text = joined(pieces)
        return text if isinstance(text, WrittenText) else WrittenText(text)
