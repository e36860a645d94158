"""Bodies for rows: small requests with a few fields changed, and JSON that no serializer writes."""

import json
from typing import Any

COMPLETION: dict[str, Any] = {"prompt": "Hi", "max_tokens": 2, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}


def completion(**fields: Any) -> bytes:
    """A completion with `fields` changed."""
    return _json({**COMPLETION, **fields})


def chat(**fields: Any) -> bytes:
    """A chat with `fields` changed."""
    return _json({**CHAT, **fields})


def message(content: Any, **fields: Any) -> bytes:
    """A chat of one message."""
    return _json({"messages": [{"role": "user", "content": content, **fields}], "max_tokens": 2})


def given(fields: dict[str, Any]) -> bytes:
    """A body of the fields that are not None."""
    return _json({name: value for name, value in fields.items() if value is not None})


def with_raw(field: str, value: str, *, of: dict[str, Any] = COMPLETION) -> bytes:
    """A request whose `field` is the text `value`, JSON or not."""
    others = {name: known for name, known in of.items() if name != field}
    return b"{" + json.dumps(field).encode() + b": " + value.encode() + b", " + _json(others)[1:]


def nested(depth: int, kind: str = "list") -> str:
    """JSON of arrays or objects within each other."""
    opening, closing = ("[", "]") if kind == "list" else ('{"a":', "}")
    return opening * depth + ("" if kind == "list" else "1") + closing * depth


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
