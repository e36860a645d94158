"""Sessions: names that nobody would give one, in paths, bodies and headers, and pins of sessions that are not there."""

import json
from typing import Any

from tests.attack.make import chat
from tests.attack.row import Row

SESSIONS = "/v1/sessions"
REFUSED, UNKNOWN = frozenset({400}), frozenset({404})

# (what is odd about it, the name as a path has it)
NAMES = [
    ("a name that is not there", "nobody"),
    ("a name of 10,000 letters", "x" * 10_000),
    ("a name with a NUL", "a%00b"),
    ("a name with a new line", "a%0Ab"),
    ("a name that is no UTF-8", "%FF%FE"),
    ("half of a character", "%ED%A0%80"),
    ("a name outside ASCII", "schl%C3%BCssel"),
    ("two dots", "%2E%2E"),
    ("folders above", "..%2F..%2Fsecret"),
    ("an absolute path", "%2Fetc%2Fpasswd"),
    ("a percent sign alone", "%"),
    ("a semicolon", "a;b=c"),
    ("a space", "%20"),
    ("markup", "%3Cscript%3E"),
]
ACTIONS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/pin", None),
    ("DELETE", "/pin", None),
    ("POST", "/fork", {"name": "other"}),
    ("POST", "/rewind", {"turn": 0}),
    ("GET", "", None),
    ("DELETE", "", None),
]
GIVEN: list[tuple[str, Any]] = [
    ("an empty name", ""),
    ("a name of 10,000 letters", "x" * 10_000),
    ("a name with a NUL", "a\0b"),
    ("a name with a new line at its end", "a\n"),
    ("folders above", "../../secret"),
    ("a number", 5),
    ("a list", ["a"]),
]
HEADERS = [("an empty name", b""), ("folders above", b"../../secret"), ("10,000 letters", b"x" * 10_000)]
TURNS: list[tuple[str, Any]] = [("a text", "0"), ("a fraction", 0.5), ("nothing", None), ("a list", [0])]


def rows() -> list[Row]:
    """All of this theme; none of them begins or finds a session."""
    found = [
        Row(
            f"{method} of a session{path}: {what}",
            f"{SESSIONS}/{name}{path}",
            b"" if body is None else json.dumps(body).encode(),
            method=method,
            allowed=UNKNOWN,
        )
        for method, path, body in ACTIONS
        for what, name in NAMES
    ]
    for what, name in GIVEN:
        body = json.dumps({"name": name}).encode()
        found.append(Row(f"a fork under {what}", f"{SESSIONS}/nobody/fork", body, names=("name",), allowed=REFUSED))
        asked = Row(f"a chat in a session: {what}", "/v1/chat/completions", chat(session=name), names=("session",))
        found.append(asked)
    for what, value in HEADERS:
        headers = (("X-Session", value),)
        found.append(Row(f"X-Session: {what}", "/v1/chat/completions", chat(), headers, names=("session",)))
    for what, turn in TURNS:
        body = json.dumps({"turn": turn}).encode()
        found.append(Row(f"a rewind to {what}", f"{SESSIONS}/nobody/rewind", body, names=("turn",)))
    pin = f"{SESSIONS}/nobody/pin"
    found += [
        Row(f"{method} of a pin", pin, method=method, allowed=frozenset({405})) for method in ("GET", "PUT", "PATCH")
    ]
    found += [
        Row("a pin with a body of 1 MB", pin, b"x" * 1_000_000, allowed=frozenset({400})),
        Row("a pin without a key", pin, keyed=False, allowed=frozenset({401})),
        Row("the end of a pin without a key", pin, method="DELETE", keyed=False, allowed=frozenset({401})),
        Row("a pin without a name", f"{SESSIONS}//pin", allowed=UNKNOWN),
        Row("a pin of a pin", f"{pin}/pin", allowed=UNKNOWN),
    ]
    return found
