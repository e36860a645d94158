"""Bodies of /tokenize and /detokenize.

Owns: their Structs. Called by: their routes.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.api.errors import RequestError
from core_apis.protocol.messages import Conversation, Message
from core_formats.server_limits import ServerLimits
from core_formats.tool_use import ToolUse


class TokenizeRequest(msgspec.Struct, Conversation, forbid_unknown_fields=True, kw_only=True):
    """A text to tokenize: either a prompt or messages.

    add_special_tokens: None is true for a prompt and false for messages.
    """

    messages: list[Message] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def check(self, limits: ServerLimits, *, shows_uncallable: bool = False) -> ToolUse:
        """Require exactly one of prompt and messages. Return the tools of the conversation.

        shows_uncallable: see `TemplateSettings`.
        """
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("Give either prompt or messages, one of them.", param="prompt")
        if self.messages is None:
            return ToolUse()
        return self.check_conversation(limits, shows_uncallable=shows_uncallable)


class TokenizeResponse(msgspec.Struct):
    """The token ids of a text.

    count: their number. max_model_len: tokens that the context holds. token_strs: their texts, if requested.
    """

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Token ids to turn into text, special tokens included."""

    tokens: list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct):
    """The text of the token ids."""

    prompt: str
