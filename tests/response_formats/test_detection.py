"""The row of a checkpoint; transformers' own parser of response templates is the oracle of their translation."""

import json

import pytest

from core_formats.answers.events import ReasoningDelta
from core_formats.detection import detect_format
from core_formats.row_files import own_rows
from tests.response_formats.answers import OPENAI_TOOLS, TOOLS, calls_of, parsed, text_of, turns

THINK = {"open": "<think>", "close": "</think>", "content": "text"}
FUNCTION = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
WHOLE = {"type": "function", "function": "{content}"}
TEMPLATES = {
    "json in tags": (
        {
            "thinking": THINK,
            "tool_calls": {
                "open": "<call>",
                "close": "</call>",
                "content": "json",
                "repeats": True,
                "transform": WHOLE,
            },
            "content": {"close": "<|im_end|>", "content": "text"},
        },
        "<think>Hm.</think>Let me.<call>{call}</call><call>{call}</call>",
    ),
    "a list": (
        {
            "thinking": {"open": "<|T|>", "close": "<|/T|>", "content": "text"},
            "content": {"open": "<|R|>", "close": "<|/R|>", "content": "text"},
            "tool_calls": {
                "open": "<|A|>",
                "close": "<|/A|>",
                "content": "json",
                "transform_each": True,
                "transform": {"type": "function", "function": {"name": "{tool}", "arguments": "{given}"}},
            },
        },
        '<|T|>Hm.<|/T|><|R|>Let me.<|/R|><|A|>[{"tool": "get_weather", "given": {args}}]<|/A|>',
    ),
    "a name before JSON": (
        {
            "content": {"open": "<|final|>", "close": "<|end|>", "content": "text"},
            "tool_calls": {
                "open_pattern": r"<\|to\|>functions\.(?P<name>\w+).*?<\|message\|>",
                "close": "<|call|>",
                "content": "json",
                "repeats": True,
                "transform": FUNCTION,
            },
        },
        "<|final|>Let me.<|end|><|to|>functions.get_weather json<|message|>{args}<|call|>",
    ),
    "pairs": (
        {
            "thinking": THINK,
            "content": {"content": "text"},
            "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>",
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                },
                "transform": FUNCTION,
            },
        },
        "<think>Hm.</think>Let me.<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    ),
    "loose JSON": (
        {
            "thinking": {"open": "<|channel>thought\n", "close": "<channel|>", "content": "text"},
            "content": {"close": ["<turn|>", "<eos>"], "content": "text"},
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                "close": "<tool_call|>",
                "repeats": True,
                "content": "json",
                "content_args": {"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
                "transform": FUNCTION,
            },
        },
        '<|channel>thought\nHm.<channel|>Let me.<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>',
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_response_template_reads_as_transformers_reads_it(name):
    from transformers.utils.chat_parsing import parse_response

    fields, text = TEMPLATES[name]
    template = {"start_anchor": "<assistant>", "fields": fields}
    args = {"city": "Rome", "days": 3}
    call = json.dumps({"name": "get_weather", "arguments": args})
    text = text.replace("{call}", call).replace("{args}", json.dumps(args))
    detected = detect_format("<tool_call></tool_call>", (), template)
    assert detected.reason == "the checkpoint's tokenizer configuration has a response_template."
    events = parsed(detected.row, text, tools=TOOLS)
    expected = parse_response(text, template, prefix="<assistant>", tools=OPENAI_TOOLS)
    functions = [call["function"] for call in expected["tool_calls"]]
    assert calls_of(events) == [(function["name"], function["arguments"]) for function in functions]
    assert text_of(events) == expected["content"]
    assert text_of(events, ReasoningDelta) == expected.get("thinking", "")
    for cut in range(len(text)):
        assert parsed(detected.row, text, [cut]) == events


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ([], "it is no object with fields"),
        ({"fields": {"content": {}, "images": {}}}, "it has the field 'images'"),
        ({"fields": {"tool_calls": {"open": "<c>", "content": "kv-lines"}}}, "calls have the content 'kv-lines'"),
        ({"fields": {"thinking": {"open_pattern": "(?:^|<think>)", "close": "</think>"}}}, "is no marker"),
        ({"fields": {"thinking": {"open": 3, "close": "x"}}}, "open is no text"),
    ],
)
def test_what_cannot_be_translated_is_said_and_the_chat_template_is_asked(template, words):
    detected = detect_format("<tool_call></tool_call>", (), template)
    assert detected.row.name == "hermes"
    assert words in detected.reason


@pytest.mark.parametrize("row", [row for row in own_rows() if row.calls and row.match], ids=lambda row: row.name)
def test_a_template_that_writes_like_a_row_is_of_that_row(row):
    prompts = {
        "granite4": "<|start_of_role|>",
        "granite": "<|start_of_role|>",
        "minimax": "<beginning_of_sentence>",
        "jamba": "",
        "llama3_json": '<|start_header_id|> Respond in the format {"name": name, "parameters": values}',
        "xlam": '[{"name": "tool_call_name", "arguments": {"arg1": "value1"}}]',
        "pythonic": "<|start_header_id|>[func_name1(name1=value1), func_name2(name2=value2)]",
        "llama4_pythonic": "<|header_start|>[func_name1(name1=value1), func_name2(name2=value2)]",
        "deepseek_v31": "{% if thinking %}",
        "glm47": "</arg_key><arg_value>",
    }
    detected = detect_format(prompts.get(row.name, "") + turns()[row.name])
    assert detected.row.name == row.name, detected.reason


def test_reasoning_that_a_template_does_not_know_is_left_out():
    assert detect_format("<tool_call></tool_call>").row.reasoning is None
    assert detect_format("<tool_call></tool_call></think>").row.reasoning is not None


def test_without_a_template_the_vocabulary_decides():
    detected = detect_format(None, {"[TOOL_CALLS]"})
    assert (detected.row.name, detected.reason) == ("mistral", "the vocabulary has the special token '[TOOL_CALLS]'.")
    assert detect_format("{{ messages }}", {"<s>"}).row is None
