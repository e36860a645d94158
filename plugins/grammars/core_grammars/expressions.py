r"""Analysis of regular expressions in one pass: their parts, their size, and whether they are anchored.

Owns: the names of parts (rows below), their size with all counts expanded. Never does: match, recurse, know backends.
Called by: `core_grammars.conditions` (patterns of schemas), `core_grammars.keywords` (whole answers).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from core_grammars.honoured import MOST_EXPRESSION_BYTES

ESCAPES: dict[str, str] = {
    "d": "digit",
    "D": "not digit",
    "w": "word",
    "W": "not word",
    "s": "space",
    "S": "not space",
    "b": "word boundary",
    "B": "word boundary",
    "A": "inner anchor",
    "Z": "inner anchor",
    "z": "inner anchor",
    "G": "inner anchor",
    "p": "unicode property",
    "P": "unicode property",
    "k": "back reference",
    "g": "back reference",
    "x": "code",
    "u": "code",
    "U": "code",
    "c": "code",
    "N": "code",
    "0": "code",
    "t": "control",
    "n": "control",
    "r": "control",
    "f": "control",
    "v": "control",
    "a": "control",
    "\\": "quote",
    '"': "quote",
    **dict.fromkeys("123456789", "back reference"),
}
GROUPS: tuple[tuple[str, str], ...] = (
    ("(?:", "group"),
    ("(?=", "look-around"),
    ("(?!", "look-around"),
    ("(?<=", "look-around"),
    ("(?<!", "look-around"),
    ("(?>", "atomic group"),
    ("(?P=", "back reference"),
    ("(?P<", "named group"),
    ("(?<", "named group"),
    ("(?#", "comment"),
    ("(?(", "condition"),
    ("(?", "flags"),
    ("(", "group"),
)
COUNT = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}")
CLASS_ESCAPED = "\\"
MAX_DEPTH = 100
TOO_LARGE = 10**12


@dataclass(slots=True)
class Expression:
    """The result of analysing an expression.

    parts: names of its parts.
    size: states when every count is multiplied out, at most TOO_LARGE.
    anchored: whether it begins with `^` and ends with `$` and has no alternative outside groups.
    problem: why it is invalid; empty for a valid one.
    """

    parts: set[str] = field(default_factory=set)
    size: int = 0
    anchored: bool = False
    problem: str = ""


@dataclass(slots=True)
class _Reader:
    """The state of the pass.

    sizes: current size of each open group, outermost first.
    last: size of the part that a count would repeat; zero if there is none.
    """

    text: str
    found: Expression
    position: int = 0
    sizes: list[int] = field(default_factory=lambda: [0])
    last: int = 0

    def add(self, size: int) -> None:
        self.sizes[-1] += size
        self.last = size

    def startswith(self, text: str) -> bool:
        return self.text.startswith(text, self.position)


def read_expression(text: str) -> Expression:
    """Analyse `text`. An invalid expression has a `problem`; one that is too long is not analysed."""
    found = Expression()
    if len(text) > MOST_EXPRESSION_BYTES:
        found.problem = f"it has {len(text)} characters, and {MOST_EXPRESSION_BYTES} are the limit"
        return found
    reader = _Reader(text, found)
    while reader.position < len(text) and not found.problem:
        _part(reader)
    if not found.problem and len(reader.sizes) > 1:
        found.problem = "a group is not closed"
    found.size = min(reader.sizes[0], TOO_LARGE)
    ends = text.endswith("$") and not _is_escaped(text, len(text) - 1)
    found.anchored = text.startswith("^") and ends and "outer alternative" not in found.parts
    return found


def _part(reader: _Reader) -> None:
    letter = reader.text[reader.position]
    if letter == "(":
        _open(reader)
    elif letter == ")":
        _close(reader)
    elif letter == "[":
        _class(reader)
    elif letter == "\\":
        _escape(reader)
    elif letter in "*+?{" and _repeat(reader, letter):
        return
    elif letter == "|":
        _alternative(reader)
    elif letter in "^$":
        _anchor(reader, letter)
    else:
        _literal(reader, letter)


def _open(reader: _Reader) -> None:
    for opening, part in GROUPS:
        if reader.startswith(opening):
            reader.found.parts.add(part)
            reader.position += len(opening)
            break
    reader.sizes.append(0)
    reader.last = 0
    if len(reader.sizes) > MAX_DEPTH:
        reader.found.problem = f"groups are nested more than {MAX_DEPTH} levels deep"


def _close(reader: _Reader) -> None:
    reader.position += 1
    if len(reader.sizes) == 1:
        reader.found.problem = "a group is closed that is not open"
        return
    inner = reader.sizes.pop()
    reader.add(max(inner, 1))


def _class(reader: _Reader) -> None:
    body = _class_body(reader.text, reader.position)
    if body is None:
        reader.found.problem = "a class of characters is not closed"
        return
    reader.position += len(body) + 2
    negated = body.startswith("^")
    reader.found.parts.add("negated class" if negated else "class")
    _class_parts(body.removeprefix("^"), negated, reader.found.parts)
    reader.add(1)


def _class_body(text: str, start: int) -> str | None:
    position = start + 1
    if text.startswith("^", position):
        position += 1
    if text.startswith("]", position):
        position += 1
    while position < len(text):
        if text[position] == CLASS_ESCAPED:
            position += 2
        elif text[position] == "]":
            return text[start + 1 : position]
        else:
            position += 1
    return None


def _class_parts(body: str, negated: bool, parts: set[str]) -> None:
    position = 0
    while position < len(body):
        letter = body[position]
        if letter == CLASS_ESCAPED and position + 1 < len(body):
            _escaped_part(ESCAPES.get(body[position + 1], ""), negated, parts)
            position += 2
            continue
        if letter == "[" and body[position + 1 : position + 2] in (":", "."):
            parts.add("named class")
        if not negated:
            _range_parts(body, position, parts)
        if not letter.isascii():
            parts.add("not ASCII")
        position += 1


def _escaped_part(part: str, negated: bool, parts: set[str]) -> None:
    """Add the parts of an escape in a class: in a negated class `\\d` matches non-digits."""
    if not part or (negated and part in ("quote", "control")):
        return
    plain = part.removeprefix("not ")
    if negated and plain in ("digit", "word", "space"):
        part = f"not {part}" if part == plain else plain
    parts.add(part)


def _range_parts(body: str, position: int, parts: set[str]) -> None:
    """Add characters that JSON escapes and that are in a range, or stand alone."""
    first = body[position]
    last = first
    if body[position + 1 : position + 2] == "-" and position + 2 < len(body):
        last = body[position + 2]
    if any(first <= quote <= last for quote in '"\\'):
        parts.add("quote")
    if first < " ":
        parts.add("control")


def _escape(reader: _Reader) -> None:
    if reader.position + 1 >= len(reader.text):
        reader.found.problem = "it ends with a backslash"
        return
    part = ESCAPES.get(reader.text[reader.position + 1])
    if part:
        reader.found.parts.add(part)
    reader.position += 2
    reader.add(1)


def _repeat(reader: _Reader, letter: str) -> bool:
    """Read a count and its modifier; False for a brace that is not a count."""
    least, most, length = 0, 1, 1
    if letter == "{":
        count = COUNT.match(reader.text, reader.position)
        if count is None:
            return _literal(reader, letter)
        least = int(count[1])
        most = int(count[3]) if count[3] else max(least, 1)
        length = len(count[0])
        if count[3] and most < least:
            reader.found.problem = f"the count {count[0]} ends before it begins"
            return True
    if not reader.last:
        reader.found.problem = f"nothing stands before `{letter}`"
        return True
    reader.found.parts.add("repetition")
    more = min(reader.last * max(most, 1) - reader.last, TOO_LARGE)
    reader.sizes[-1] += more
    reader.last += more
    reader.position += length
    _manner(reader)
    return True


def _manner(reader: _Reader) -> None:
    if reader.startswith("?"):
        reader.found.parts.add("lazy")
        reader.position += 1
    elif reader.startswith("+"):
        reader.found.parts.add("possessive")
        reader.position += 1


def _alternative(reader: _Reader) -> None:
    if len(reader.sizes) == 1:
        reader.found.parts.add("outer alternative")
    reader.position += 1
    reader.last = 0


def _anchor(reader: _Reader, letter: str) -> None:
    at_edge = reader.position == (0 if letter == "^" else len(reader.text) - 1)
    if not at_edge:
        reader.found.parts.add("inner anchor")
    reader.position += 1
    reader.last = 0


def _literal(reader: _Reader, letter: str) -> bool:
    if letter == '"':
        reader.found.parts.add("quote")
    elif letter == ".":
        reader.found.parts.add("dot")
    elif letter < " ":
        reader.found.parts.add("control")
    elif not letter.isascii():
        reader.found.parts.add("not ASCII")
    reader.position += 1
    reader.add(1)
    return True


def _is_escaped(text: str, position: int) -> bool:
    backslashes = len(text[:position]) - len(text[:position].rstrip("\\"))
    return backslashes % 2 == 1
