"""Conversion of structural tag formats to pieces.

Owns: one row of `READERS` per type of format, and `FIELDS`, the fields that each may have. Never does: write rules.
Called by: `tags`.

The formats are those of xgrammar, and `lark`. A type or field without a row is not supported, and is rejected by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from core.api.structured_outputs import GrammarSpec
from core_grammars.llguidance.pieces import Choice, Free, Inner, Piece, Repeat, Series, Text, Token, optional
from core_grammars.llguidance.tag_grammar import ANY_TEXT
from core_grammars.llguidance.tag_tokens import TagTokens

Format = Mapping[str, Any]
Texts = tuple[str, ...]
GrammarOf = Callable[[GrammarSpec], str]

MOST_REPEATS = 100_000_000
SPACES = re.compile(r"\[(?: |\\n|\\r|\\t|\\s|\n)+\](?:[*+?]|\{\d+(?:,\d*)?\})?")
"""Expressions for white space, which cannot be confused with a following text."""
FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "const_string": ("value",),
        "any_text": ("excludes", "max_tokens", "max_chars"),
        "any_tokens": ("exclude_tokens", "max_tokens"),
        "token": ("token",),
        "exclude_token": ("exclude_tokens",),
        "json_schema": ("json_schema", "style"),
        "regex": ("pattern",),
        "grammar": ("grammar",),
        "lark": ("grammar", "ends"),
        "sequence": ("elements",),
        "or": ("elements",),
        "optional": ("content",),
        "star": ("content",),
        "plus": ("content",),
        "repeat": ("min", "max", "content"),
        "tag": ("begin", "content", "end"),
        "triggered_tags": ("triggers", "tags", "excludes", "at_least_one", "stop_after_first"),
        "token_triggered_tags": ("trigger_tokens", "tags", "exclude_tokens", "at_least_one", "stop_after_first"),
        "tags_with_separator": ("tags", "separator", "at_least_one", "stop_after_first"),
    }
)
EMPTY: tuple[Any, ...] = (None, False, [], "")


class Reading:
    """The conversion of one tag.

    grammar_of: the Lark grammar of a specification of another kind, without options.
    spec: the tag's options for JSON.
    """

    def __init__(self, tokens: TagTokens, grammar_of: GrammarOf, spec: GrammarSpec) -> None:
        self.tokens = tokens
        self.grammar_of = grammar_of
        self.spec = spec

    def piece(self, part: Any, ends: Texts) -> Piece:
        """Convert a format. ends: texts that end free text at its end."""
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError("the structural tag has a format that is no object with a type")
        kind = part["type"]
        if kind not in READERS:
            raise ValueError(f"the structural tag has a format of the type {kind!r}, which is not read")
        known = FIELDS[kind]
        for name, value in part.items():
            if name != "type" and name not in known and value not in EMPTY:
                raise ValueError(f"the structural tag has {name!r} in a format of the type {kind!r}, which is not read")
        try:
            return READERS[kind](self, part, ends)
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"the structural tag has a format of the type {kind!r} that is not well formed") from None

    def _const_string(self, part: Format, ends: Texts) -> Piece:
        return Text(_text(part["value"]))

    def _any_text(self, part: Format, ends: Texts) -> Piece:
        without = tuple(dict.fromkeys((*_texts(part.get("excludes", ())), *ends)))
        most = _number(part.get("max_tokens"))
        characters = _number(part.get("max_chars"))
        if most is None:
            pattern = ANY_TEXT if characters is None else f"(?s:.{{0,{characters}}})"
            return Free(pattern, without, is_any=True)
        if without or characters is not None:
            raise ValueError("a limit of tokens on text that ends with other text, and not with a token, is not held")
        return self.tokens.all_but(self.tokens.without_text, 0, most)

    def _any_tokens(self, part: Format, ends: Texts) -> Piece:
        return self.tokens.all_but(self._ids(part.get("exclude_tokens", ())), 0, _number(part.get("max_tokens")))

    def _token(self, part: Format, ends: Texts) -> Piece:
        return Token(self.tokens.token(part["token"]))

    def _exclude_token(self, part: Format, ends: Texts) -> Piece:
        return self.tokens.all_but(self._ids(part.get("exclude_tokens", ())), 1, 1)

    def _json_schema(self, part: Format, ends: Texts) -> Piece:
        style = part.get("style", "json")
        if style != "json":
            raise ValueError(f"the structural tag has a schema in the style {style!r}, which is not read")
        text = json.dumps(part["json_schema"], ensure_ascii=False)
        spec = GrammarSpec("json_schema", text, self.spec.any_whitespace, self.spec.additional_properties)
        lark = self.grammar_of(spec).strip()
        if not lark.startswith("start: ") or "\n" in lark:
            raise ValueError("a schema takes more than one rule")
        return Inner(lark.removeprefix("start: "), ends=True)

    def _regex(self, part: Format, ends: Texts) -> Piece:
        given = _text(part["pattern"])
        pattern = given.removeprefix("^")
        if pattern.endswith("$") and not pattern.endswith("\\$"):
            pattern = pattern[:-1]
        lark = self.grammar_of(GrammarSpec("regex", pattern)).strip()
        if not lark.startswith("start: /") or "\n" in lark:
            raise ValueError("a regular expression takes more than one rule")
        inner = lark.removeprefix("start: ")
        if SPACES.fullmatch(pattern):
            return Inner(inner, ends=True)
        return Free(inner[1:-1], is_any=pattern in (r"[\s\S]*", "(.|\\n)*", "(?s:.*)"))

    def _ebnf(self, part: Format, ends: Texts) -> Piece:
        return self._nested(GrammarSpec("ebnf", _text(part["grammar"])))

    def _lark(self, part: Format, ends: Texts) -> Piece:
        return self._nested(GrammarSpec("lark", _text(part["grammar"])), ends=part.get("ends") is True)

    def _sequence(self, part: Format, ends: Texts) -> Piece:
        elements = part["elements"]
        last = len(elements) - 1
        pieces = [self.piece(one, ends if place == last else ()) for place, one in enumerate(elements)]
        return Series(tuple(pieces))

    def _either(self, part: Format, ends: Texts) -> Piece:
        return Choice(tuple(self.piece(one, ends) for one in part["elements"]))

    def _maybe(self, part: Format, ends: Texts) -> Piece:
        return optional(self.piece(part["content"], ends))

    def _star(self, part: Format, ends: Texts) -> Piece:
        return Repeat(self.piece(part["content"], ()), 0, None)

    def _plus(self, part: Format, ends: Texts) -> Piece:
        return Repeat(self.piece(part["content"], ()), 1, None)

    def _repeat(self, part: Format, ends: Texts) -> Piece:
        least = _number(part["min"]) or 0
        most = None if part["max"] == -1 else _number(part["max"])
        if most is not None and most < least:
            raise ValueError(f"the structural tag repeats a part {least} to {most} times")
        return Repeat(self.piece(part["content"], ()), least, most)

    def _tag(self, part: Format, ends: Texts) -> Piece:
        begin = self._edge(part["begin"])
        last = part["end"]
        choices = last if isinstance(last, list) else [last]
        ending = [self._edge(one) for one in choices]
        stops = tuple(one.text for one in ending if isinstance(one, Text) and one.text)
        content = self.piece(part["content"], stops)
        end = ending[0] if len(ending) == 1 else Choice(tuple(ending))
        return Series((begin, content, end))

    def _triggered_tags(self, part: Format, ends: Texts) -> Piece:
        triggers = _texts(part["triggers"])
        without = tuple(dict.fromkeys((*triggers, *_texts(part.get("excludes", ())), *ends)))
        free = Free(ANY_TEXT, without, is_any=True)
        for tag in part["tags"]:
            if not any(_text(tag["begin"]).startswith(trigger) for trigger in triggers):
                raise ValueError(f"the structural tag has a tag without a trigger: {tag['begin'][:40]!r}")
        return self._triggered(part, free)

    def _token_triggered_tags(self, part: Format, ends: Texts) -> Piece:
        left_out = self._ids([*part["trigger_tokens"], *part.get("exclude_tokens", ())])
        return self._triggered(part, self.tokens.all_but(left_out, 0, None))

    def _tags_with_separator(self, part: Format, ends: Texts) -> Piece:
        one = Choice(tuple(self.piece(tag, ()) for tag in part["tags"]))
        whole: Piece = one
        if not part.get("stop_after_first"):
            further = Series((Text(_text(part["separator"])), one))
            whole = Series((one, Repeat(further, 0, None)))
        return whole if part.get("at_least_one") else optional(whole)

    def _triggered(self, part: Format, free: Piece) -> Piece:
        """Return tags in free text; the first one immediately if at least one is required."""
        tag = Choice(tuple(self.piece(one, ()) for one in part["tags"]))
        needed = bool(part.get("at_least_one"))
        if part.get("stop_after_first"):
            return tag if needed else Series((free, optional(tag)))
        loop = Repeat(Series((free, tag)), 0, None)
        return Series((tag, loop, free)) if needed else Series((loop, free))

    def _nested(self, spec: GrammarSpec, *, ends: bool = False) -> Piece:
        return Inner(f"%lark {{\n{self.grammar_of(spec)}\n}}", ends)

    def _edge(self, edge: Any) -> Piece:
        return Text(edge) if isinstance(edge, str) else self.piece(edge, ())

    def _ids(self, values: Iterable[Any]) -> set[int]:
        return {self.tokens.token(value) for value in values}


READERS: Mapping[str, Callable[[Reading, Format, Texts], Piece]] = MappingProxyType(
    {
        "const_string": Reading._const_string,
        "any_text": Reading._any_text,
        "any_tokens": Reading._any_tokens,
        "token": Reading._token,
        "exclude_token": Reading._exclude_token,
        "json_schema": Reading._json_schema,
        "regex": Reading._regex,
        "grammar": Reading._ebnf,
        "lark": Reading._lark,
        "sequence": Reading._sequence,
        "or": Reading._either,
        "optional": Reading._maybe,
        "star": Reading._star,
        "plus": Reading._plus,
        "repeat": Reading._repeat,
        "tag": Reading._tag,
        "triggered_tags": Reading._triggered_tags,
        "token_triggered_tags": Reading._token_triggered_tags,
        "tags_with_separator": Reading._tags_with_separator,
    }
)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _texts(values: Sequence[Any]) -> Texts:
    return tuple(_text(value) for value in values if value != "")


def _number(value: Any) -> int | None:
    """Return a limit; None: no limit."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError
    if value > MOST_REPEATS:
        raise ValueError(f"the structural tag counts to {value}; at most {MOST_REPEATS} is counted")
    return value
