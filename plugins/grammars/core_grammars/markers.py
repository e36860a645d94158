"""Special tokens as markers in structural tags.

Owns: the replacement of their text by the tokens. Never does: compile. Called by: grammar backends.

Special tokens have no text, so that nothing inside an answer is mistaken for one. A tag that contains the text of one
means the token itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Format = dict[str, Any]

PARTS = ("elements", "content", "tags", "format")
"""Fields that contain formats."""
TOKENS = ("exclude_tokens", "trigger_tokens")
"""Fields that contain tokens, by id or by text."""


class Markers:
    """Replaces marker texts by tokens. specials: text of each special token by its id."""

    def __init__(self, specials: Mapping[int, str]) -> None:
        self._ids = {text: index for index, text in specials.items() if text}
        longest_first = sorted(self._ids, key=len, reverse=True)
        words = "|".join(map(re.escape, longest_first))
        self._words = re.compile(f"({words})") if words else None

    def as_tokens(self, value: Any) -> Any:
        """Return a format, or any part of one, with tokens in place of their text."""
        if isinstance(value, list):
            return [self.as_tokens(part) for part in value]
        if not isinstance(value, dict):
            return value
        found = dict(value)
        for name in PARTS:
            if name in found:
                found[name] = self.as_tokens(found[name])
        for name in TOKENS:
            if name in found:
                found[name] = [self._id(token) for token in found[name]]
        match value.get("type"):
            case "const_string":
                return self._text(found)
            case "token":
                found["token"] = self._id(found.get("token"))
            case "tag":
                found["begin"] = self._edge(found.get("begin"))
                found["end"] = self._edge(found.get("end"))
            case "any_text":
                # A special token has no text, so it need not be excluded.
                excludes = found.get("excludes", [])
                found["excludes"] = [text for text in excludes if not self._has_marker(text)]
            case "triggered_tags":
                return self._triggered(found)
        return found

    def _id(self, token: Any) -> Any:
        """Return the id of a special token given by its text; anything else unchanged."""
        return self._ids.get(token, token) if isinstance(token, str) else token

    def _text(self, value: Format) -> Format:
        """Return a text, split into parts where it contains markers."""
        parts: list[Format] = []
        for piece in self._pieces(value["value"]):
            if piece in self._ids:
                parts.append(self._token(piece))
            elif piece:
                parts.append({"type": "const_string", "value": piece})
        if not parts:
            return value
        if len(parts) == 1:
            return parts[0]
        return {"type": "sequence", "elements": parts}

    def _edge(self, text: Any) -> Any:
        is_marker = isinstance(text, str) and text in self._ids
        return self._token(text) if is_marker else text

    def _triggered(self, value: Format) -> Format:
        """Return tags triggered by single tokens, which have their own type."""
        triggers = value.get("triggers", [])
        if not triggers or not all(trigger in self._ids for trigger in triggers):
            return value
        found = dict(value)
        del found["triggers"]
        found["type"] = "token_triggered_tags"
        found["trigger_tokens"] = [self._ids[trigger] for trigger in triggers]
        found.pop("excludes", None)
        found["tags"] = [self._behind_token(tag) for tag in value.get("tags", [])]
        return found

    def _behind_token(self, tag: Format) -> Format:
        """Return a tag that begins with a token; the rest of its beginning moves to its content."""
        begin = tag.get("begin")
        if not isinstance(begin, str):
            return tag
        first = next((word for word in self._ids if begin.startswith(word)), None)
        if first is None:
            return tag
        rest: Format = {"type": "const_string", "value": begin[len(first) :]}
        content = {"type": "sequence", "elements": [rest, tag["content"]]}
        return {**tag, "begin": self._token(first), "content": content}

    def _token(self, text: str) -> Format:
        return {"type": "token", "token": self._ids[text]}

    def _pieces(self, text: str) -> list[str]:
        return [text] if self._words is None else self._words.split(text)

    def _has_marker(self, text: Any) -> bool:
        return self._words is not None and isinstance(text, str) and self._words.search(text) is not None
