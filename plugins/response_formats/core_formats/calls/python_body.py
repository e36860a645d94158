"""Reader of calls written as Python calls with keywords: `name(key=value)`, one or a list of them.

Owns: the parsing. Never does: execute anything, look for the marker before a call. Called by:
`core_formats.answers.parser`.

The arguments are emitted as JSON, each when it is complete.
"""

from __future__ import annotations

import ast
import json
import re
from itertools import islice

from core_formats.answers.reader import SPACE, Reader, Reading, literals, with_token_texts
from core_formats.calls.reading import CallReading, is_name
from core_formats.calls.value_types import MAX_LITERAL, NOT_JSON, argument_types, no_string, strict_json, typed_json
from core_formats.tool_spec import ToolSpec

MAX_DEPTH = 64
_STOPS = re.compile(r"[\"'(){}\[\],]")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}


def read_python_calls(reading: CallReading) -> Reading[bool]:
    """Read calls up to the first text that is not a call, or the end of the list."""
    reader = reading.reader
    in_list = (yield from reader.skip()) == "["
    if in_list:
        reader.at += 1
    while True:
        following = yield from reader.skip(SPACE + ",;")
        if not (following.isalpha() or following == "_"):
            break
        reading.keep()
        name = yield from reading.name()
        if (yield from reader.peek()) != "(" or not is_name(name) or not reading.may_start(name):
            return False
        reader.at += 1
        reading.start(name)
        whole = yield from _arguments(reading)
        reading.sink.end_call(whole)
        if not whole:
            return False
    if in_list and reader.mark is None and (yield from reader.peek()) == "]":
        reader.at += 1
    return False


def _arguments(reading: CallReading) -> Reading[bool]:
    """Read arguments up to the closing bracket. False: the text ended."""
    sink = reading.sink
    opening = "{"
    position = 0
    while True:
        pieces: list[str] = []
        ending = yield from _one_argument(reading.reader, pieces)
        text = with_token_texts("".join(pieces))
        if ending and text.strip():
            key, value = _divided(text, sink.open_call, position)
            sink.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: {_fitted(value, sink.open_call, key)}")
            opening = ", "
            position += 1
        if ending == ",":
            continue
        if ending:
            sink.arguments("{}" if opening == "{" else "}")
        return bool(ending)


def _one_argument(reader: Reader, pieces: list[str]) -> Reading[str]:
    """Read an argument including the comma or bracket that ends it. Empty: the text ended."""
    depth = 0
    while True:
        found = _STOPS.search(reader.text, reader.at)
        if found is None:
            pieces.append(reader.text[reader.at :])
            reader.at = len(reader.text)
            if not (yield from reader.more()):
                return ""
            continue
        character = found.group()
        if depth == 0 and character in ",)":
            pieces.append(reader.text[reader.at : found.start()])
            reader.at = found.end()
            return character
        pieces.append(reader.text[reader.at : found.end()])
        reader.at = found.end()
        if character in "\"'":
            if not (yield from _string(reader, character, pieces)):
                return ""
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return ""


def _string(reader: Reader, quote: str, pieces: list[str]) -> Reading[bool]:
    """Read the rest of a string with one quote or three. False: the text ended."""
    stops = literals(quote, "\\")
    quotes = quote
    if (yield from reader.take(literals(quote * 2))):
        pieces.append(quote * 2)
        if not (yield from reader.take(literals(quote))):
            return True
        pieces.append(quote)
        quotes = quote * 3
        stops = literals(quotes, "\\")
    while True:
        found = yield from reader.until(stops, pieces.append)
        pieces.append(found)
        if found != "\\":
            return bool(found)
        pieces.append((yield from reader.peek()))
        reader.at = min(reader.at + 1, len(reader.text))


def _divided(text: str, tool: ToolSpec | None, position: int) -> tuple[str, str]:
    """Return an argument's key and its value as JSON; a positional one gets the key at its place in the schema."""
    found = _KEY.fullmatch(text)
    if found is not None:
        return found.group(1), _as_json(found.group(2).strip())
    keys = () if tool is None else tool.argument_names()
    key = next(islice(keys, position, None), f"argument_{position}")
    return key, _as_json(text.strip())


def _fitted(value: str, tool: ToolSpec | None, key: str) -> str:
    """Return the value as JSON; a quoted value is parsed if the schema does not allow strings."""
    types = argument_types(tool, key)
    if value.startswith('"') and no_string(types):
        return typed_json(str(json.loads(value)), types)
    return value


def _as_json(text: str) -> str:
    """Convert a literal of JSON or Python to JSON; anything else becomes a string."""
    if strict_json(text) is not NOT_JSON:
        return text
    if len(text) > MAX_LITERAL:
        return typed_json(text, ())
    try:  # most models use Python's quotes and constants
        tree = ast.parse(text, mode="eval")
        written = json.dumps(_value(tree.body, 0), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return typed_json(text, ())
    return written.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _value(node: ast.expr, depth: int) -> object:
    """Return the value of a literal, including `true`, `false` and `null`. Raises ValueError."""
    if depth > MAX_DEPTH:
        raise ValueError("too deep")
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(item, depth + 1) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _value(key, depth + 1) for key in node.keys]
        return {str(key): _value(value, depth + 1) for key, value in zip(keys, node.values, strict=True)}
    value = ast.literal_eval(node)
    if isinstance(value, bytes | complex):
        raise ValueError("no JSON")
    return value
