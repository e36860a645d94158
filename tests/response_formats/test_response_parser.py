import json
from random import Random

import pytest

from core_formats.answers.events import ArgumentsDelta, CallEnd, CallStart, ReasoningDelta, TextDelta
from core_formats.answers.parser import ResponseParser
from core_formats.answers.reader import Literals, Reader
from core_formats.row_files import composed, format_named
from core_formats.tool_spec import ToolSpec
from tests.response_formats.answers import SCHEMA, TOOLS, calls_of, parsed, text_of

CALL = '{"name": "get_weather", "arguments": {"city": "Rome", "days": 1}}'
ROME = ("get_weather", {"city": "Rome", "days": 1})


def row(name):
    return format_named(name, "tools")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "Use a <tool_call> tag, <tool_c or {x}.\n"),
        ("hermes", "<tool_call>[1, 2]</tool_call> is none."),
        ("hermes", '<tool_call>{"city": "Rome"}</tool_call>'),
        ("llama3_json", '{"answer": 5}'),
        ("llama3_json", '{"name": "Ada", "parameters": {}}'),
        ("llama3_json", '{"name": "get_weather" is how it begins'),
        ("pythonic", "[1] is a note, [print(1)] is code."),
        ("pythonic", "[get_weather] and [get_weathers(1)]"),
        ("qwen3_coder", "A <tool_call> without <function> and <function=."),
        ("glm45", "<tool_call>get_weather is a tool.</tool_call>"),
        ("kimi_k2", "<|tool_calls_section_begin|> opens a section."),
        ("mistral", "[TOOL_CALLS] stands before calls; nothing else does."),
        ("gemma4", "<|tool_call>call me"),
        ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>no name at all"),
        ("openai", "It is to=functions. nothing"),
    ],
)
def test_text_that_begins_like_a_call_comes_out_unchanged(name, text):
    for cuts in ((), range(1, len(text))):
        assert parsed(row(name), text, cuts) == [TextDelta(text)]


def test_without_tools_the_markers_of_calls_are_text():
    text = f"So:\n<tool_call>\n{CALL}\n</tool_call>"
    assert parsed(row("hermes"), text, tools=[]) == [TextDelta(text)]


def test_a_marked_call_of_an_unknown_tool_is_a_call_and_an_unmarked_one_is_text():
    unknown = CALL.replace("get_weather", "get_wether")
    assert calls_of(parsed(row("hermes"), f"<tool_call>{unknown}</tool_call>")) == [("get_wether", ROME[1])]
    assert parsed(row("llama3_json"), unknown) == [TextDelta(unknown)]


def test_arguments_are_the_text_that_the_model_wrote():
    written = '{ "city":"R\\u00f6me" ,\n "days": 1e0}'
    events = parsed(row("hermes"), f'<tool_call>{{"name": "get_weather", "arguments": {written}}}</tool_call>')
    assert events[1] == ArgumentsDelta(0, written)


def test_arguments_stream_before_the_call_is_whole():
    parser = ResponseParser(row("hermes"), TOOLS)
    events = parser.push('<tool_call>{"name": "get_weather", "arguments": {"city": "Ro')
    assert [type(event) for event in events] == [CallStart, ArgumentsDelta]
    assert parser.push("me") == [ArgumentsDelta(0, "me")]
    parser = ResponseParser(row("qwen3_coder"), TOOLS)
    parser.push("<tool_call>\n<function=get_weather>\n<parameter=city>\nRo")
    assert parser.push('"me') == [ArgumentsDelta(0, '\\"me')]


def test_text_waits_only_for_what_may_be_a_marker():
    parser = ResponseParser(row("hermes"), TOOLS)
    assert parser.push("a <tool") == [TextDelta("a")]
    assert parser.push("s>") == [TextDelta(" <tools>")]
    assert parser.push("b\n\n") == [TextDelta("b")]
    assert parser.push("c") == [TextDelta("\n\nc")]


@pytest.mark.parametrize(
    "name", ["hermes", "qwen3_coder", "glm45", "deepseek_v32", "kimi_k2", "gemma4", "pythonic", "openai"]
)
def test_a_call_that_is_cut_is_not_complete(name):
    from core_formats.calls.writing import written_calls

    text = written_calls(row(name), [("get_weather", {"city": "Rome", "days": 1})])
    events = parsed(row(name), text[: text.index("Ro") + 2], complete=False)
    assert events[0] == CallStart(0, "id", "get_weather")
    assert events[-1] == CallEnd(0, complete=False)


def test_a_call_whose_closing_marker_is_missing_is_complete_when_the_model_stopped():
    assert calls_of(parsed(row("hermes"), f"<tool_call>{CALL}")) == [ROME]
    tags = "<tool_call>\n<function=now>\n"
    assert parsed(row("qwen3_coder"), tags)[-1] == CallEnd(0)
    assert parsed(row("qwen3_coder"), tags, complete=False)[-1] == CallEnd(0, complete=False)


def test_a_function_without_its_section_is_a_call():
    text = "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
    text += "<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>"
    assert calls_of(parsed(row("qwen3_coder"), text)) == [ROME]


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "01234", "01234"),
        ({"type": "array"}, "['a', 1]", ["a", 1]),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"enum": [1, 2]}, "2", 2),
        ({"$ref": "#/$defs/city"}, "7", "7"),
        ({}, '{"a": 1}', {"a": 1}),
        ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "object"}, "[" * 100_000, "[" * 100_000),
    ],
)
def test_values_get_their_types_from_the_schema(schema, written, value):
    tool = ToolSpec("f", parameters={"properties": {"x": schema}, "$defs": {"city": {"type": "string"}}})
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{written}\n</parameter>\n</function>\n</tool_call>"
    assert calls_of(parsed(row("qwen3_coder"), text, tools=[tool])) == [("f", {"x": value})]


def test_reasoning_that_the_prompt_has_begun_or_ended():
    qwen = row("hermes")
    assert parsed(qwen, "Hm.\n</think>\n\nYes.", tail="<|im_start|>assistant\n<think>\n") == [
        ReasoningDelta("Hm."),
        TextDelta("Yes."),
    ]
    assert parsed(qwen, "Yes.", tail="<think>\n\n</think>\n\n") == [TextDelta("Yes.")]
    r1 = format_named("deepseek_r1", "reasoning")
    assert parsed(r1, "Hm.</think>Yes.") == [ReasoningDelta("Hm."), TextDelta("Yes.")]
    assert parsed(r1, "<think>Hm.</think>Yes.") == [ReasoningDelta("Hm."), TextDelta("Yes.")]
    assert parsed(r1, "Hm and no end.", complete=False) == [ReasoningDelta("Hm and no end.")]
    assert parsed(r1, "Yes.", tail="</think>") == [TextDelta("Yes.")]


def test_a_marker_of_reasoning_within_text_is_text():
    assert parsed(row("hermes"), "Write <think> first.") == [TextDelta("Write <think> first.")]


def test_a_call_ends_reasoning_and_a_mention_does_not():
    mention = "<think>I may write <tool_call> later.</think>Yes."
    assert parsed(row("hermes"), mention) == [ReasoningDelta("I may write <tool_call> later."), TextDelta("Yes.")]
    events = parsed(row("hermes"), f"<think>I call. <tool_call>{CALL}</tool_call>")
    assert events[0] == ReasoningDelta("I call.")
    assert calls_of(events) == [ROME]


def test_reasoning_between_calls():
    text = f"<think>a</think><tool_call>{CALL}</tool_call>\n<think>b</think>\n<tool_call>{CALL}</tool_call>"
    events = parsed(row("hermes"), text)
    assert text_of(events, ReasoningDelta) == "ab"
    assert calls_of(events) == [ROME, ROME]


def test_texts_around_calls_stay_apart():
    text = f"One.\n<tool_call>{CALL}</tool_call>\n\n<tool_call>{CALL}</tool_call>\n\nTwo."
    assert text_of(parsed(row("hermes"), text)) == "One.\n\nTwo."
    assert text_of(parsed(row("granite"), f"One. <|tool_call|>[{CALL}]\nTwo.")) == "One.\nTwo."
    assert text_of(parsed(row("hermes"), f"<tool_call>{CALL}</tool_call>\n")) == ""


def test_special_tokens_count_where_they_are_tokens_and_are_never_text():
    specials = {"<tool_call>", "</tool_call>", "<|im_end|>"}
    spelled = f"Write <tool_call>{CALL}</tool_call>."
    assert parsed(row("hermes"), spelled, special_tokens=specials) == [TextDelta(spelled)]
    parser = ResponseParser(row("hermes"), TOOLS, special_tokens=specials)
    text = f"So <tool_call>{CALL}</tool_call><|im_end|>"
    places = [(3, 14), (text.index("</tool"), text.index("<|im")), (text.index("<|im"), len(text))]
    events = parser.push(text, places) + parser.finish()
    assert events[0] == TextDelta("So")
    assert calls_of(events) == [ROME]
    parser = ResponseParser(row("hermes"), [], special_tokens=specials)
    assert text_of(parser.push("Bye<|im_end|>", [(3, 13)]) + parser.finish()) == "Bye"


def test_a_special_token_within_arguments_stays_there():
    text = CALL.replace("Rome", "<|im_end|>")
    parser = ResponseParser(row("hermes"), TOOLS, special_tokens={"<|im_end|>"})
    at = text.index("<|im") + len("<tool_call>")
    events = parser.push(f"<tool_call>{text}</tool_call>", [(at, at + 10)]) + parser.finish()
    assert calls_of(events) == [("get_weather", {"city": "<|im_end|>", "days": 1})]


def test_ids_are_the_models_own_or_of_the_rows_form():
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:4<|tool_call_argument_begin|>{}<|tool_call_end|>"
    )
    parser = ResponseParser(row("kimi_k2"), TOOLS)
    assert parser.push(text)[0] == CallStart(0, "functions.now:4", "now")
    mistral = ResponseParser(row("mistral"), TOOLS, new_id=lambda: "mine")
    start = mistral.push("[TOOL_CALLS]now[ARGS]{}")[0]
    assert len(start.id) == 9
    assert start.id.isalnum()
    with_id = ResponseParser(row("mistral"), TOOLS).push("[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}")
    assert with_id[0].id == "abcdefghi"
    other = ResponseParser(row("hermes"), TOOLS, new_id=lambda: "mine").push('<tool_call>{"name": "now"}</tool_call>')
    assert other[0].id == "mine"


@pytest.mark.parametrize(
    ("name", "text"), [("hermes", '<tool_call>{"name": "now"}</tool_call>'), ("mistral", "[TOOL_CALLS]now[ARGS]{}")]
)
def test_ids_that_are_drawn_from_a_seed_come_again(name, text):
    drawn = [ResponseParser(row(name), TOOLS, draw=Random(seed)).push(text)[0].id for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "patch", "arguments": {"input": "a \\"b\\"\\n\\u00e9"}}</tool_call>'),
        (
            "qwen3_coder",
            '<tool_call>\n<function=patch>\n<parameter=input>\na "b"\né\n</parameter>\n</function>\n</tool_call>',
        ),
        ("openai", '<|channel|>commentary to=functions.patch<|message|>a "b"\né<|call|>'),
    ],
)
def test_the_input_of_a_custom_tool_is_its_text(name, text):
    tool = ToolSpec("patch", kind="custom")
    for cuts in ((), range(1, len(text))):
        events = parsed(row(name), text, cuts, tools=[tool])
        assert events[1:] == [ArgumentsDelta(0, 'a "b"\né'), CallEnd(0)]


@pytest.mark.parametrize(
    "body",
    [
        f'{{"arguments": {json.dumps(ROME[1])}, "name": "get_weather"}}',
        f'{{"type": "function", "function": {{"name": "get_weather", "parameters": {json.dumps(ROME[1])}}}}}',
        json.dumps({"name": "get_weather", "arguments": json.dumps(ROME[1])}),
        f"[{CALL}]",
    ],
)
def test_other_ways_to_write_a_json_call(body):
    for cuts in ((), range(1, len(body))):
        assert calls_of(parsed(row("hermes"), f"<tool_call>{body}</tool_call>", cuts)) == [ROME]


def test_harmony_channels():
    text = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary<|message|>First<|end|>"
    text += '<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{"a": 1}<|call|>'
    assert parsed(row("openai"), text) == [
        ReasoningDelta("Hm"),
        TextDelta("First"),
        CallStart(0, "id", "now"),
        ArgumentsDelta(0, '{"a": 1}'),
        CallEnd(0),
    ]


def test_two_rows_put_together():
    both = composed(row("mistral"), format_named("deepseek_r1", "reasoning"))
    assert parsed(both, "Hm</think>[TOOL_CALLS]now[ARGS]{}")[0] == ReasoningDelta("Hm")
    assert parsed(composed(None, None), "<think>a</think>") == [TextDelta("<think>a</think>")]


def test_memory_and_time_stay_bounded():
    parser = ResponseParser(row("hermes"), TOOLS)
    parser.push('<tool_call>{"name": "get_weather", "arguments": {"city": "')
    for _ in range(2000):
        parser.push("x" * 100)
    assert len(parser._reader.text) < 1000
    for hostile in ("<" * 50_000, "<tool_call>" * 5_000, "\n" * 50_000, '<tool_call>{"a":' * 3_000):
        assert text_of(parsed(row("hermes"), hostile)).strip() == hostile.strip()


def test_a_marker_that_begins_another_gives_way():
    reader = Reader()
    pieces = []
    run = reader.until(Literals(["<a", "<a>b"]), pieces.append)
    reader.give("x<a")
    assert next(run, "ended") is None
    reader.give(">b")
    with pytest.raises(StopIteration) as found:
        next(run)
    assert (found.value.value, pieces) == ("<a>b", ["x"])


def test_the_schema_of_the_tests_is_the_one_of_its_tool():
    assert TOOLS[0].parameters is SCHEMA
