"""A parser of answers for tests: `<think>…</think>` is reasoning, `<tool_call>{"name", "arguments"}</tool_call>` a call."""

from __future__ import annotations

import json
import re
from uuid import uuid4

from core.api.answer_events import AnswerEvent, ArgumentsDelta, CallEnd, CallStart, ReasoningDelta, TextDelta
from core.api.outputs import CompletionOutput
from core.serving.preparation import PreparedChat

TAG = re.compile(r"</?(?:think|tool_call)>")
HELD = re.compile(r"<[a-z_/]*$")


class TagParser:
    """Stands where `AnswerParser` stands. A call is told in two halves of its arguments."""

    def __init__(self, prepared: PreparedChat) -> None:
        self.text = ""
        self.mode = ""
        self.num_calls = 0
        self.reasoning_tokens = 0

    def push(self, completion: CompletionOutput) -> list[AnswerEvent]:
        self.text += completion.text
        events: list[AnswerEvent] = []
        while tag := TAG.search(self.text):
            events += self._told(self.text[: tag.start()], whole=True)
            self.mode = "" if tag.group().startswith("</") else tag.group()
            self.text = self.text[tag.end() :]
        if self.mode == "<think>":
            self.reasoning_tokens += len(completion.token_ids)
        ended = completion.finish_reason is not None
        if self.mode == "<tool_call>" and not ended:
            return events
        held = None if ended else HELD.search(self.text)
        end = held.start() if held else len(self.text)
        events += self._told(self.text[:end], whole=False)
        self.text = self.text[end:]
        return events

    def _told(self, text: str, *, whole: bool) -> list[AnswerEvent]:
        if self.mode == "<think>":
            return [ReasoningDelta(text)] if text else []
        if self.mode != "<tool_call>":
            return [TextDelta(text)] if text else []
        name, arguments = self._call(text)
        index = self.num_calls
        self.num_calls += 1
        half = len(arguments) // 2
        parts = [ArgumentsDelta(index, part) for part in (arguments[:half], arguments[half:]) if part]
        return [CallStart(index, f"call-{uuid4().hex}", name), *parts, CallEnd(index, whole)]

    def _call(self, text: str) -> tuple[str, str]:
        try:
            call = json.loads(text)
            return call["name"], call["raw"] if "raw" in call else json.dumps(call["arguments"])
        except ValueError:
            found = re.match(r'\{"name": "(\w+)", "arguments": (.*)', text)
            assert found, text
            return found[1], found[2]
