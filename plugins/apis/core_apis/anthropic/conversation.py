"""Translation of a conversation in Anthropic's shape into messages in the chat API's shape.

Owns: that translation: consecutive turns of the same role become one, tool results become messages, thinking becomes
reasoning. Never does: look at other fields. Called by: `core_apis.anthropic.chat`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from core.api.errors import RequestError, nearest
from core_apis.anthropic import signature
from core_apis.anthropic.blocks import ONLY_TEXT, block_text, blocks, image_url, result_parts
from core_apis.protocol.anthropic import (
    BLOCKS,
    ImageBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from core_apis.protocol.messages import Message
from core_media.reading.parts import PlacedPart, placed_picture

ACCOUNTING = "x-anthropic-billing-header:"
"""Prefix of a system-prompt block that Claude Code adds for accounting.

The block is no instruction, and it differs from session to session, so no prefix would ever hit the cache. It is left
out.
"""


class ChatMessages:
    """Builder of the chat API's `messages` from turns in order.

    late_system: whether the template renders a system message in place; else it becomes a part of the user's turn.
    """

    def __init__(self, *, late_system: bool) -> None:
        self.late_system = late_system
        self.messages: list[Message] = []
        self._tool_names: dict[str, str] = {}

    def system(self, content: str | Sequence[dict[str, Any]], place: str) -> None:
        """Add the content of a system prompt or system message."""
        texts = [block.text for _, block in blocks(content, ONLY_TEXT, place)]
        kept = [text for text in texts if text and not text.startswith(ACCOUNTING)]
        text = "\n\n".join(kept)
        if not text:
            return
        is_first = all(message["role"] == "system" for message in self.messages)
        if is_first or self.late_system:
            self._add_text("system", text)
        else:
            self._add_text("user", f"<system>\n{text}\n</system>")

    def turn(self, turn: Turn, place: str, *, keeps_thinking: bool) -> None:
        """Add one message of the request. Raises RequestError."""
        if turn.role not in BLOCKS:
            raise RequestError(
                f"{place}.role is {turn.role!r}; expected one of: {', '.join(BLOCKS)}.{nearest(turn.role, BLOCKS)}",
                param="messages",
            )
        content_place = f"{place}.content"
        if turn.role == "system":
            self.system(turn.content, content_place)
        elif turn.role == "assistant":
            self._assistant(turn, content_place, keeps_thinking=keeps_thinking)
        else:
            self._user(turn, content_place)

    def _user(self, turn: Turn, place: str) -> None:
        # Templates expect all results of an answer's calls behind it, and pictures in the user's turn alone.
        waiting: list[PlacedPart] = []
        for where, block in blocks(turn.content, BLOCKS["user"], place):
            if isinstance(block, ToolResultBlock):
                waiting += self._result(block, where)
                continue
            self._add_parts("user", waiting)
            if isinstance(block, ImageBlock):
                self._add_part("user", placed_picture(image_url(block, where), where, "image"))
            else:
                self._add_text("user", block_text(block, where))
        self._add_parts("user", waiting)

    def _result(self, block: ToolResultBlock, place: str) -> list[PlacedPart]:
        """Add a tool's result; return its pictures, which belong behind the last result of the turn."""
        name = self._tool_names.get(block.tool_use_id)
        if name is None:
            raise RequestError(
                f"{place} is the result of the call {block.tool_use_id!r}, which no earlier message has; send the "
                "assistant's message with its tool_use block before it.",
                param="messages",
            )
        text, pictures = result_parts(block.content, is_error=bool(block.is_error), place=f"{place}.content")
        message = {"role": "tool", "tool_call_id": block.tool_use_id, "name": name, "content": text}
        self.messages.append(message)
        return pictures

    def _assistant(self, turn: Turn, place: str, *, keeps_thinking: bool) -> None:
        text = ""
        reasoning = ""
        calls: list[dict[str, Any]] = []
        for where, block in blocks(turn.content, BLOCKS["assistant"], place):
            match block:
                case TextBlock():
                    text += block.text
                case ThinkingBlock():
                    is_ours = signature.is_ours(block.thinking, block.signature, where)
                    if is_ours and keeps_thinking:
                        reasoning += block.thinking
                case ToolUseBlock():
                    calls.append(self._call(block))
                case RedactedThinkingBlock():
                    pass  # written by another provider, and unreadable
        self._add_answer(text, reasoning, calls)

    def _call(self, block: ToolUseBlock) -> dict[str, Any]:
        self._tool_names[block.id] = block.name
        arguments = json.dumps(block.input, ensure_ascii=False)
        function = {"name": block.name, "arguments": arguments}
        return {"id": block.id, "type": "function", "function": function}

    def _add_text(self, role: str, text: str) -> None:
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == role and isinstance(last["content"], list):
            last["content"].append({"type": "text", "text": text})
        elif last is not None and last["role"] == role:
            last["content"] += "\n" + text
        else:
            self.messages.append({"role": role, "content": text})

    def _add_parts(self, role: str, parts: list[PlacedPart]) -> None:
        """Add parts, and take them out of their list."""
        for part in parts:
            self._add_part(role, part)
        parts.clear()

    def _add_part(self, role: str, part: dict[str, Any]) -> None:
        """Add a part that is no text to the turn of a role, whose content becomes a list of parts."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != role:
            self.messages.append({"role": role, "content": [part]})
            return
        if isinstance(last["content"], str):
            last["content"] = [{"type": "text", "text": last["content"]}]
        last["content"].append(part)

    def _add_answer(self, text: str, reasoning: str, calls: list[dict[str, Any]]) -> None:
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant":
            last = {"role": "assistant", "content": ""}
            self.messages.append(last)
        last["content"] += text
        if reasoning:
            last["reasoning_content"] = last.get("reasoning_content", "") + reasoning
        if calls:
            last["tool_calls"] = [*last.get("tool_calls", ()), *calls]
