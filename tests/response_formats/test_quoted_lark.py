"""Lark grammars of custom tools, held within JSON strings. The oracle is llguidance on the grammar and text as they are."""

import json
import random

import pytest

from core.api.structured_outputs import GrammarSpec
from core_formats.calls.quoted_lark import quoted
from core_formats.calls.writing import written_calls
from core_formats.constraint import constraint
from core_formats.row_files import own_rows
from core_formats.tool_spec import ToolSpec
from core_kit.fixtures.grammar_vocabulary import STOP, vocabulary

pytest.importorskip("llguidance")

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
PATCHED = (
    '*** Begin Patch\n*** Add File: a "b".py\n+x = "\\n/ä"\n+\n+\ty\n*** Update File: z\n@@ def f\n-a\n+b\n \n'
    "*** End of File\n*** Delete File: c\n*** End Patch"
)
SUM = r"""
// numbers and names
start: sum ("\n" sum)*
sum: term (("+" | "-") term)*
?term: NUMBER | NAME | "(" sum ")" | STRING
NUMBER: /[0-9]+(\.[0-9]{1,2})?/
NAME: /[a-z_][\w]*/
STRING: /"([^"\\]|\\.)*"/
"""
SUMMED = '(a_1+2.50)-"say \\"x\\" \\\\"\nb+(c)'
CASES = {"patch": (PATCH, PATCHED), "sum": (SUM, SUMMED)}
ROWS = [row for row in own_rows() if row.calls and row.calls[0].kind in ("json", "named_json", "pythonic", "loose")]


@pytest.fixture(scope="module")
def backend():
    from core_grammars.llguidance.backend import LlguidanceBackend

    return LlguidanceBackend(vocabulary())


class Grammar:
    def __init__(self, backend, kind, text):
        self.backend = backend
        self.data = backend.compile(GrammarSpec(kind, text))

    def accepts(self, text):
        matcher = self.backend.matcher(self.data)
        return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(STOP)


def changed(text, random_):
    """The text with a line or a letter left out, moved or put in."""
    lines = text.split("\n")
    place = random_.randrange(len(lines))
    match random_.randrange(4):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, random_.choice(lines))
        case 2:
            at = random_.randrange(len(lines[place]) + 1)
            lines[place] = lines[place][:at] + random_.choice('a1+- "\\(/\t') + lines[place][at:]
        case _:
            at = random_.randrange(len(lines[place]) + 1)
            lines[place] = lines[place][:at] + lines[place][at + 1 :]
    return "\n".join(lines)


@pytest.mark.parametrize("name", CASES)
def test_the_same_texts_are_taken_within_a_string(backend, name):
    grammar, text = CASES[name]
    plain = Grammar(backend, "lark", grammar)
    within = Grammar(backend, "lark", quoted(grammar))
    random_ = random.Random(name)
    verdicts = []
    for _ in range(300):
        given = text
        for _ in range(random_.randrange(3)):
            given = changed(given, random_)
        expected = plain.accepts(given)
        assert within.accepts(json.dumps(given, ensure_ascii=False)[1:-1]) == expected, given
        verdicts.append(expected)
    assert 30 < sum(verdicts) < 270


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_input_of_a_custom_tool_is_held(backend, row):
    tool = ToolSpec("patch", kind="custom", grammar=GrammarSpec("lark", PATCH))
    spec = constraint(row, [tool], "required", parallel=False)
    held = Grammar(backend, spec.kind, spec.text)

    def written(text):
        if row.calls[0].kind == "loose":
            form = row.calls[0]
            return f"{form.open}{form.name_open}patch{json.dumps({'input': text}, ensure_ascii=False)}{form.close}"
        found = written_calls(row, [("patch", {"input": text})])
        spelled = json.dumps(text, ensure_ascii=False)
        return found.replace(repr(text), spelled) if row.calls[0].kind == "pythonic" else found

    assert held.accepts(written(PATCHED))
    assert not held.accepts(written(PATCHED.replace("+x", "x")))
    assert not held.accepts(written(PATCHED[:-1]))


UNKNOWN = (
    'start: "a".."z"',
    "start: A\nA.2: /a/",
    "start: /a/i",
    'start: "a"i',
    "start: /^a$/",
    "start: /a+?/",
    r"start: /\bx/",
    r"start: /\x00/",
    "start: /(?=a)a/",
    "start: /(/",
    "start: /[b-a]/",
    f"start: /{'(' * 50}/",
    "start: ~A",
    "start: A & B",
    "start: <[5]>",
    "start[capture]: /a/",
    "start: A\n%ignore A\nA: /a/",
    "%import common.NUMBER\nstart: NUMBER",
    'start: %json {"type": "object"}',
)


@pytest.mark.parametrize("grammar", UNKNOWN)
def test_what_is_not_understood_is_not_held(grammar):
    assert quoted(grammar) is None
