"""Answers that make no sense: a row's markers and pieces of JSON in any order."""

from core_formats.answers.events import CallEnd, CallStart
from tests.response_formats.answers import parsed

PIECES = [
    '{"name": "now", "arguments": {}}', '{"name":"', "now", "get_weather", '(city="x")', '"', "\\", "\\u00e9",
    "\\ud83d",
]  # fmt: skip
PIECES += ["{", "}", "[", "]", ",", ":", " ", "\n", "x", "=", '{"a":1}', "'", '"""', "call:", "</", ">", "```", "}}"]


def pieces_of(row):
    """What answers in the format of a row are made of."""
    found = list(PIECES)
    if row.reasoning is not None:
        found += [*row.reasoning.open, *row.reasoning.close] * 2
    for form in row.calls:
        found += [form.open, form.close, form.name_open, form.key_open, form.value_open, form.value_close] * 2
        found += [form.args_close, *form.args_open, form.string_delimiter, form.separator] * 2
        found += [value.after_key for value in form.values] * 2
    return [*found, *(row.section or ()) * 3, *row.dropped, *(row.content or ())]


def differs(row, source):
    """A senseless answer that is read otherwise in single characters than in one piece, else None."""
    pieces = pieces_of(row)
    text = "".join(source.choice(pieces) for _ in range(source.randint(1, 25)))
    complete = source.random() < 0.5
    whole = parsed(row, text, complete=complete)
    for event in whole:
        (
            event.name if isinstance(event, CallStart) else getattr(event, "text", "")
        ).encode()  # halves of characters fail
    starts = sum(isinstance(event, CallStart) for event in whole)
    ends = sum(isinstance(event, CallEnd) for event in whole)
    same = parsed(row, text, range(1, len(text)), complete=complete) == whole
    return None if same and starts == ends else (row.name, text)
