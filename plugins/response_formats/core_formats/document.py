"""Generator of docs/response-formats.md from the rows: `python -m core_formats.document > docs/response-formats.md`.

Owns: the page. Called by: developers; a test compares it with the file.
"""

from __future__ import annotations

from core_formats.calls.writing import written_calls
from core_formats.response_format import ResponseFormat
from core_formats.row_files import own_rows

EXAMPLE = [("get_weather", {"city": "Rome", "days": 3})]

HEAD = """# Response formats

Written by `python -m core_formats.document` from the rows in `plugins/response_formats/core_formats/rows`; edit those.

A **response format** is a row of data that says how a model writes reasoning, text and tool calls. One row gives the
parser of answers, the grammar that holds `required`, named and strict calls, and the test that what the row writes is
read back however it is cut. Rows of plugins: [plugins/response_format.md](plugins/response_format.md).

**Which row serves.** `--tool-call-parser NAME` and `--reasoning-parser NAME` (the names of the table; calls of one
row and reasoning of another may be put together); else the `response_template` of the checkpoint's tokenizer
configuration; else the row whose fragments the chat template has, most of them winning; else the row whose marker is
a special token of the vocabulary. `core config explain` says which and why.

**Models whose chat template shows no tools** get them in a system message (in the first message of the user where the
template has no system messages), with an example of a call as the row writes it; calls and results of earlier turns
become text. Without a row the row `generic` serves. The log says so at the first such request, and `explain` with each.
`--tool-call-parser none` refuses tools instead.

**What to expect**

- White space around markers is part of neither text, reasoning nor calls.
- A marker that is a special token counts only where the model gave that token; special tokens are never text. Within
  arguments their text stands.
- Text that begins like a call and is none comes out unchanged.
- Between markers a call is a call whatever its name is; without markers only the name of one of the request's tools
  makes it one.
- Without tools, the markers of calls are text.
- A call ends reasoning, also when the marker that closes it is missing.
- Arguments of JSON bodies are the text that the model wrote. Those of other bodies are JSON with the types of the
  tool's schema: a value that may be a number, `true` or `null` is one when it reads so; strings come out as they
  arrive.
- A call that the limit of tokens cuts ends with what there is of its arguments. When the model ends by itself,
  missing closing markers are forgiven.

## Rows

| row | calls | tool parser names | reasoning parser names | reasoning |
|---|---|---|---|---|
"""


def document() -> str:
    """Return the page."""
    rows = own_rows()
    table = "".join(_table_line(row) for row in rows)
    examples = "".join(_example(row) for row in rows if row.calls)
    return f"{HEAD}{table}\n## One call in each format\n{examples}"


def _table_line(row: ResponseFormat) -> str:
    tools = ", ".join(f"`{name}`" for name in row.tool_names) or "–"
    reasoning = ", ".join(f"`{name}`" for name in row.reasoning_names) or "–"
    return f"| {row.name} | {_html(row.summary)} | {tools} | {reasoning} | {_reasoning(row)} |\n"


def _reasoning(row: ResponseFormat) -> str:
    if row.reasoning is None:
        return "–"
    opening = _code(row.reasoning.open[0].strip())
    begun = ", an answer begins inside" if row.reasoning.implied_open else ""
    return f"{opening} … {_code(row.reasoning.close[0].strip())}{begun}"


def _example(row: ResponseFormat) -> str:
    source = f" ({row.source})" if row.source else ""
    summary = _html(row.summary[0].upper() + row.summary[1:])
    return f"\n### {row.name}\n\n{summary}{source}.\n\n````text\n{_written(row)}\n````\n"


def _written(row: ResponseFormat) -> str:
    return written_calls(row, EXAMPLE).strip("\n")


def _code(text: str) -> str:
    return f"`{_escaped(text)}`"


def _html(text: str) -> str:
    return _escaped(text).replace("<", "&lt;")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(document(), end="")
