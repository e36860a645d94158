"""The kit's conformance suite, and one answer."""

import pytest
from core_my_plugin.formats import ROWS

from core_formats.answers.parser import ResponseParser
from core_formats.row_files import read_rows
from core_formats.tool_spec import ToolSpec
from core_kit import cases


@pytest.mark.parametrize("case", cases("response_format", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_a_call_is_read():
    parser = ResponseParser(read_rows(ROWS)[0], [ToolSpec("add")])
    events = parser.push('<why>Sum.</why>@call {"tool": "add", "with": {"a": 1}} @end') + parser.finish()
    assert [type(event).__name__ for event in events] == ["ReasoningDelta", "CallStart", "ArgumentsDelta", "CallEnd"]
