"""Whole answers of conversations with tools."""

from core_formats.answers.plan import AnswerPlan
from core_formats.row_files import format_named
from core_formats.selection import AnswerFormat
from core_formats.tool_use import ToolUse
from core_frontend.api.outputs import CompletionOutput
from core_frontend.whole_answer import take_apart
from tests.response_formats.answers import TOOLS

CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


def test_special_tokens_are_read_and_then_left_out_of_the_text():
    text = f"<think>Hm.</think>Yes.{CALL}"
    marks = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    spans = [(text.index(mark), text.index(mark) + len(mark)) for mark in marks]
    served = AnswerFormat(format_named("hermes", "tools"), special_tokens=marks)
    plan = AnswerPlan(served, ToolUse([], TOOLS, "auto"), None, None)
    for keeps in (False, True):
        completion = CompletionOutput(0, text, [], finish_reason="stop", specials=spans)
        take_apart(completion, plan, "<|im_start|>assistant\n", keeps_specials=keeps)
        assert [call.name for call in completion.parts.tool_calls] == ["now"]
        assert completion.text == (text if keeps else 'Hm.Yes.{"name": "now", "arguments": {}}')
