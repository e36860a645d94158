"""Structural tags of rows, as the xgrammar plugin compiles them; its own tags for the same models are a second oracle."""

import json

import pytest

from core.api.errors import RequestError
from core.api.structured_outputs import GrammarSpec
from core_formats.calls.arguments_grammar import holds_input
from core_formats.calls.writing import written_calls
from core_formats.constraint import constraint
from core_formats.row_files import format_named, own_rows
from core_formats.tool_spec import ToolSpec
from core_grammars.markers import Markers
from core_grammars.xgrammar import own_terms
from tests.response_formats.answers import OPENAI_TOOLS, TOOLS, rendered, turns

xgrammar = pytest.importorskip("xgrammar")
with_grammars = pytest.importorskip("core_grammars.xgrammar.schema_grammar").with_grammars

ROWS = [row for row in own_rows() if row.calls]
ROME = {"city": "Rome", "days": 3}
THREE = [("get_weather", ROME), ("now", {}), ("get_weather", {"city": "Q", "days": 1, "tags": ["x"]})]
END = 256

# Rows for whose models xgrammar has a tag, and the name that it has there.
BUILT_IN = {
    "hermes": "qwen_3", "qwen3_coder": "qwen_3_coder", "deepseek_v31": "deepseek_v3_1", "kimi_k2": "kimi",
    "llama3_json": "llama", "deepseek_v32": "deepseek_v3_2", "deepseek_v4": "deepseek_v4", "glm47": "glm_4_7",
    "mimo": "mimo",
}  # fmt: skip


@pytest.fixture(scope="module")
def compiler():
    vocabulary = [bytes([byte]) for byte in range(END)] + ["</s>"]
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[END]), cache_enabled=False)


def accepts(compiler, spec, text):
    """Whether the whole text follows the grammar, which is honoured."""
    if isinstance(spec, GrammarSpec):
        assert not own_terms.unhonoured(spec)
    else:
        spec = GrammarSpec("structural_tag", spec.model_dump_json())
    tag = with_grammars(json.loads(own_terms.in_own_terms(spec).text), any_whitespace=True)
    matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(json.dumps(tag)))
    return matcher.accept_string(text.encode()) and matcher.accept_token(END)


def written(row, calls):
    """Calls as the model writes them under a constraint: JSON where a body is JSON, or takes it."""
    form = row.calls[0]
    if form.kind == "loose":
        return "".join(f"{form.open}{form.name_open}{name}{json.dumps(args)}{form.close}" for name, args in calls)
    text = written_calls(row, calls)
    return text.replace("'", '"') if form.kind == "pythonic" else text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_the_row_writes_is_accepted_and_what_is_wrong_is_refused(compiler, row):
    required = constraint(row, TOOLS, "required")
    assert accepts(compiler, required, written(row, THREE[:1]))
    assert accepts(compiler, required, written(row, THREE))
    assert not accepts(compiler, required, written(row, [("get_weather", {"city": "Rome", "days": "x"})]))
    assert not accepts(compiler, required, written(row, [("get_weather", {"city": "Rome"})]))
    assert not accepts(compiler, required, written(row, [("other", {})]))
    assert not accepts(compiler, required, "It is warm.")
    single = constraint(row, TOOLS, "required", parallel=False)
    assert accepts(compiler, single, written(row, THREE[:1]))
    assert not accepts(compiler, single, written(row, THREE))
    named = constraint(row, TOOLS, "now")
    assert accepts(compiler, named, written(row, [("now", {})]))
    assert not accepts(compiler, named, written(row, THREE[:1]))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_strict_tools_leave_text_free_and_hold_calls(compiler, row):
    strict = constraint(row, TOOLS, "auto")
    assert accepts(compiler, strict, "It is warm.")
    assert accepts(compiler, strict, written(row, THREE))
    assert not accepts(compiler, strict, written(row, [("get_weather", {"city": "Rome", "days": "x"})]))


@pytest.mark.parametrize("row", [row for row in ROWS if row.reasoning], ids=lambda row: row.name)
def test_reasoning_stands_before_what_is_held(compiler, row):
    open_, close = row.reasoning.open[0], row.reasoning.close[0]
    calls = written(row, THREE)
    free = constraint(row, TOOLS, "required", reasoning=True)
    assert accepts(compiler, free, f"{open_}Hm < {{{close}{calls}")
    assert not accepts(compiler, free, f"{open_}Hm{close}It is warm.")
    begun = constraint(row, TOOLS, "required", reasoning=True, prompt_tail=open_)
    assert accepts(compiler, begun, f"Hm{close}{calls}")
    assert not accepts(compiler, begun, calls)
    ended = constraint(row, TOOLS, "required", reasoning=True, prompt_tail=open_ + close)
    assert accepts(compiler, ended, calls)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_arguments_hold_no_property_that_the_tool_does_not_name(compiler, row):
    named = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    silent = constraint(row, [ToolSpec("get_weather", parameters=named)], "required")
    assert accepts(compiler, silent, written(row, [("get_weather", {"city": "Rome"})]))
    assert not accepts(compiler, silent, written(row, [("get_weather", {"city": "Rome", "mood": "good"})]))


def test_a_tool_may_ask_for_properties_that_it_does_not_name(compiler):
    row = format_named("hermes", "tools")
    free = {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": {"type": "integer"}}
    spec = constraint(row, [ToolSpec("get_weather", parameters=free)], "required")
    assert accepts(compiler, spec, written(row, [("get_weather", {"city": "Rome", "days": 3})]))
    assert not accepts(compiler, spec, written(row, [("get_weather", {"city": "Rome", "mood": "good"})]))


def test_structured_output_behind_reasoning(compiler):
    row = format_named("hermes", "tools")
    schema = GrammarSpec(
        kind="json_schema", text=json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    )
    alone = constraint(row, [], "auto", reasoning=True, answer=schema)
    assert accepts(compiler, alone, '<think>\n{"a": "x"}\n</think>\n\n{"a": 1}')
    assert not accepts(compiler, alone, '<think>Hm</think>{"a": "x"}')
    beside = constraint(row, TOOLS, "auto", answer=schema)
    assert accepts(compiler, beside, '{"a": 1}')
    assert accepts(compiler, beside, written(row, THREE))
    assert not accepts(compiler, beside, "It is warm.")
    choice = GrammarSpec(kind="choice", text='["yes", "no"]')
    harmony = constraint(format_named("openai", "tools"), [], "auto", reasoning=True, answer=choice)
    text = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>"
    assert accepts(compiler, harmony, text + "yes")
    assert not accepts(compiler, harmony, text + "maybe")


def test_nothing_is_held_when_nothing_asks_for_it():
    assert constraint(format_named("hermes", "tools"), TOOLS[1:], "auto") is None


def test_what_cannot_be_held_is_refused():
    row = format_named("hermes", "tools")
    with pytest.raises(RequestError, match="no tool 'other'"):
        constraint(row, TOOLS, "other")


def test_the_input_of_a_custom_tool_is_any_string_where_its_grammar_cannot_be_held(compiler):
    for name, text in (("qwen3_coder", 'start: "a"'), ("hermes", 'start: "a".."z"')):
        row = format_named(name, "tools")
        custom = ToolSpec("patch", kind="custom", grammar=GrammarSpec(kind="lark", text=text))
        assert not holds_input(row.calls[0], custom)
        assert accepts(compiler, constraint(row, [custom], "required"), written(row, [("patch", {"input": "a\n+b"})]))
    spec = constraint(row, [custom], "required")
    assert not accepts(compiler, spec, written(row, [("patch", {"input": 1})]))


@pytest.mark.parametrize(("name", "model"), BUILT_IN.items())
def test_xgrammars_own_tag_accepts_what_the_row_writes(compiler, name, model):
    row = next(row for row in ROWS if row.name == name)
    tag = xgrammar.get_model_structural_tag(model, tools=OPENAI_TOOLS, tool_choice="required", reasoning="disabled")
    text = written(row, THREE[:1])
    endings = ("", "\n")
    beginnings = ("", "\n", "\n\n")
    assert any(accepts(compiler, tag, first + text + last) for first in beginnings for last in endings)


def test_a_templates_calls_are_accepted_where_its_white_space_is_the_rows(compiler):
    refused = []
    for row in ROWS:
        text = rendered(turns()[row.name], "", "", THREE[:1])
        spec = constraint(row, TOOLS, "required")
        start = (row.section[0] if row.section else row.calls[0].open).strip()
        end = (row.section[1] if row.section else row.calls[0].close).strip()
        part = text[text.index(start) : text.rindex(end) + len(end)] if start and end else text
        if row.calls[0].kind != "loose" and start and end and not accepts(compiler, spec, part):
            refused.append(row.name)
    # Templates that put lines or ids where the row puts none: models write calls as they were trained, not as history is shown.
    assert sorted(refused) == ["cohere_command3", "hy_v3", "jamba", "step3"]


SPECIALS = ["<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"]
SPECIALS += ["<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|call|>", "<|channel|>", "<|message|>", "<|start|>"]
SPECIALS += ["<|constrain|>", "<|end|>"]
IDS = {text: END + 1 + number for number, text in enumerate(SPECIALS)}


def accepts_tokens(spec, text, stops=("</s>",)):
    """Whether the text follows the grammar when its special tokens are tokens."""
    vocabulary = [bytes([byte]) for byte in range(END)] + [b"</s>"]
    vocabulary += [b"\xff" + text.encode() for text in SPECIALS]  # bytes that no text has
    info = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[END])
    tag = Markers({index: text for text, index in IDS.items()}).as_tokens(json.loads(spec.text))
    compiled = xgrammar.GrammarCompiler(info, cache_enabled=False).compile_structural_tag(json.dumps(tag))
    matcher = xgrammar.GrammarMatcher(compiled)
    at = 0
    while at < len(text):
        special = next((one for one in SPECIALS if text.startswith(one, at)), None)
        piece = special or text[at]
        tokens = [IDS[special]] if special else piece.encode()
        if not all(_take(matcher, token, len(vocabulary)) for token in tokens):
            return False
        at += len(piece)
    return _take(matcher, END, len(vocabulary))


def _take(matcher, token, size):
    """Whether the mask has the token; it is taken in."""
    words = xgrammar.allocate_token_bitmask(1, size)
    masked = matcher.fill_next_token_bitmask(words)
    allowed = not masked or bool(int(words[0, token // 32]) >> (token % 32) & 1)
    return allowed and matcher.accept_token(token)


def test_markers_that_are_special_tokens_are_tokens_of_the_grammar():
    kimi = format_named("kimi_k2", "tools")
    spec = constraint(kimi, TOOLS, "required", reasoning=True, special_tokens=SPECIALS)
    calls = written(kimi, THREE)
    assert accepts_tokens(spec, f"<think>Hm{{</think>{calls}")
    assert not accepts_tokens(spec, calls.replace('"days": 3', '"days": "x"'))
    assert not accepts_tokens(spec, "It is warm.")
    strict = constraint(kimi, TOOLS, "auto", special_tokens=SPECIALS)
    assert accepts_tokens(strict, f"Let me.{calls}")
    harmony = format_named("openai", "tools")
    spec = constraint(harmony, TOOLS, "auto", reasoning=True, special_tokens=SPECIALS, stops=["<|call|>"])
    thought = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
    one = written(harmony, THREE[:1]).removesuffix("<|call|>")
    assert accepts_tokens(spec, thought + one)
    assert accepts_tokens(spec, thought + "<|channel|>final<|message|>It is warm.")
    assert not accepts_tokens(spec, thought + one.replace("3", "true"))


def test_a_limit_of_reasoning_leaves_all_else_free():
    kimi = format_named("kimi_k2", "tools")
    spec = constraint(kimi, TOOLS[1:], "auto", reasoning=True, max_reasoning=2, special_tokens=SPECIALS)
    assert accepts_tokens(spec, f"<think>Hm</think>Let me.{written(kimi, THREE)}")
    assert not accepts_tokens(spec, "<think>Hmm</think>Yes.")
    assert not accepts_tokens(spec, "<think>Hm</think>Yes.<think>")
