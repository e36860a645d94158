"""Conversations of two turns for tests: templates of all response formats, and what a template may do to the first turn."""

import re
from dataclasses import dataclass, field
from typing import Any

from core_apis.histories.compare import change
from core_apis.histories.trace import history_of, num_common
from core_frontend.api.explanation import Change
from core_tokens.chat.chat_template import ChatTemplate
from tests.response_formats.answers import OPENAI_TOOLS, turns

TURNS = turns()
LAST = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
)
OTHERS = "<|{{ message.role }}|>{{ message.content }}<|end|>"
OPENING = "{% if add_generation_prompt %}<|answer|>{% endif %}"
USER = {"role": "user", "content": "What is the weather in Paris, and why is it so?"}
NEXT = {"role": "user", "content": "And what will it be like tomorrow?"}
SYSTEM = {"role": "system", "content": "You know the weather of all towns, and you answer in one sentence."}


def template(
    name: str, *, drops: bool = False, trims: bool = False, date: str = "", tools: bool = False
) -> ChatTemplate:
    """The template of a response format. drops: reasoning before the last user message; trims: white space around texts."""
    turn = TURNS[name].rstrip("\n").replace("%}\n", '%}{{ "\\n" }}')
    turn = turn.replace("message.reasoning_content", "thoughts").replace("message.content", "text")
    shown = "loop.index0 > ns.last" if drops else "true"
    begin = f"{{% set thoughts = message.reasoning_content if {shown} else '' %}}"
    begin += f"{{% set text = message.content{' | trim' if trims else ''} %}}"
    head = f"<|date|>{date}<|end|>" if date else ""
    if tools:
        head += "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    each = f"{begin}{{% if message.role == 'assistant' %}}<|answer|>{turn}{{% else %}}{OTHERS}{{% endif %}}"
    return ChatTemplate(f"{LAST}{head}{{% for message in messages %}}{each}{{% endfor %}}{OPENING}")


@dataclass
class Turns:
    """Two turns. earlier, later: the templates; answer: the message that the model gave and its client returned."""

    earlier: ChatTemplate
    later: ChatTemplate
    answer: dict[str, Any]
    returned: dict[str, Any] | None = None
    first: list[dict[str, Any]] = field(default_factory=lambda: [SYSTEM, USER])
    second: list[dict[str, Any]] | None = None
    tools: list[Any] = field(default_factory=lambda: list(OPENAI_TOOLS))
    later_tools: list[Any] | None = None
    raw: str | None = None

    def told(self, place: int | None = None) -> Change:
        """Return what changed. place: where the tokens differ; None: where the texts do."""
        prompt = self.earlier.render(self.first, tools=self.tools)
        whole = self.earlier.render([*self.first, self.answer], add_generation_prompt=False, tools=self.tools)
        assert whole.startswith(prompt), (prompt, whole)
        answer = re.sub(r"<[|/][^<>]{1,40}>\n?$", "", whole[len(prompt) :]) if self.raw is None else self.raw
        history = history_of(prompt, self.first, self.tools)
        later_tools = self.tools if self.later_tools is None else self.later_tools
        messages = [*(self.second or self.first), self.returned or self.answer, NEXT]
        text = self.later.render(messages, tools=later_tools)
        if place is None:
            place = num_common(str(prompt) + answer, str(text))
        now = history_of(text, messages, later_tools)
        return change(history.going_on(prompt, answer), answer, now, str(text), place)


def answered(content: str = "It rains.", reasoning: str = "", calls: Any = ()) -> dict[str, Any]:
    """The message of an answer."""
    made = [
        {"type": "function", "id": f"abcdefgh{index}", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    return {**message, "reasoning_content": reasoning, "tool_calls": made}
