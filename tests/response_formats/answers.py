"""Answers for tests: tools, conversations, parsing in pieces, and the rendered turns of `assistant_turns.txt`."""

import json
from pathlib import Path

from core_formats.answers.events import ArgumentsDelta, CallEnd, CallStart, ReasoningDelta, TextDelta
from core_formats.answers.parser import ResponseParser
from core_formats.tool_spec import ToolSpec

TURNS = Path(__file__).with_name("assistant_turns.txt")

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "share": {"type": "number"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
        "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [ToolSpec("get_weather", parameters=SCHEMA, strict=True), ToolSpec("now", parameters=EMPTY)]
OPENAI_TOOLS = [
    {"type": "function", "function": {"name": tool.name, "description": "", "parameters": tool.parameters}}
    for tool in TOOLS
]

FULL = {
    "city": 'São "Paulo" <a> & {b}, [c] (d) \\ it\'s\nthe 2nd line 🙂',
    "days": 3,
    "share": -1.5,
    "exact": False,
    "tags": ["x", "y, z", "}"],
    "more": {"k": ["v", 1, None], "deep": {"t": True}},
    "unit": None,
}
CALLS = [("get_weather", FULL), ("now", {}), ("get_weather", {"city": "12", "days": 1})]


def turns() -> dict[str, str]:
    """Jinja of an assistant's turn by the name of its row."""
    blocks = TURNS.read_text(encoding="utf-8").split("\n=== ")[1:]
    return {name: text for name, _, text in (block.partition("\n") for block in blocks)}


def rendered(turn: str, content: str, reasoning: str, calls) -> str:
    """The turn of an assistant, by transformers' machinery."""
    from transformers.utils.chat_template_utils import render_jinja_template

    made = [
        {"type": "function", "id": f"abcdefgh{index}", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": made}
    lines = turn.rstrip("\n").replace("%}\n", '%}{{ "\\n" }}')  # templates lose the end of a line behind a block
    template = "{% for message in messages %}" + lines + "{% endfor %}"
    texts, _ = render_jinja_template([[message]], tools=OPENAI_TOOLS, chat_template=template)
    return texts[0]


def joined(events):
    """Neighbours of one kind put together."""
    out = []
    for event in events:
        last = out[-1] if out else None
        if type(last) is type(event) and isinstance(event, TextDelta | ReasoningDelta):
            out[-1] = type(event)(last.text + event.text)
        elif isinstance(last, ArgumentsDelta) and isinstance(event, ArgumentsDelta):
            out[-1] = ArgumentsDelta(event.index, last.text + event.text)
        else:
            out.append(event)
    return out


def parsed(row, text, cuts=(), tools=TOOLS, tail="", complete=True, **more):
    """All events of a text that comes in pieces, neighbours joined; ids are `id`."""
    parser = ResponseParser(row, tools, tail, lambda: "id", **more)
    events = []
    before = 0
    for cut in [*cuts, len(text)]:
        events += parser.push(text[before:cut])
        before = cut
    events += parser.finish(complete)
    return [_same_id(event) for event in joined(events)]


def _same_id(event):
    return CallStart(event.index, "id", event.name) if isinstance(event, CallStart) else event


def calls_of(events):
    """(name, arguments) of the calls, which are all whole."""
    found = []
    for event in events:
        if isinstance(event, CallStart):
            found.append([event.name, ""])
        elif isinstance(event, ArgumentsDelta):
            found[-1][1] += event.text
        elif isinstance(event, CallEnd):
            assert event.complete
    return [(name, json.loads(text)) for name, text in found]


def text_of(events, kind=TextDelta):
    """The text of one kind."""
    return "".join(event.text for event in events if isinstance(event, kind))
