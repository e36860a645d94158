"""One hostile request as data, and the judgement of its answer.

Owns: `Row`, `Answer`, `problems`. Never does: send anything. Used by the corpus, the tests and the runner.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

KEY = "attack-key"
UMLAUT_KEY = "schlüssel"
CLOSED = 0
"""The status of a connection that was closed without an answer."""
UNANSWERED = -1
"""The status of one that was still open, without an answer, when the time was over."""

OPENAI_FIELDS = frozenset({"message", "type", "param", "code"})
ANTHROPIC_FIELDS = frozenset({"message", "type"})
"""Of error objects, on the paths of either API."""

Body = bytes | Iterator[bytes]
Headers = tuple[tuple[str, bytes], ...]

SETUPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "root /": {"root_path": "/"},
    "root /v": {"root_path": "/v"},
    "root /api": {"root_path": "/api"},
    "key ü": {"api_key": UMLAUT_KEY},
    "queue of 32": {"max_num_queued_reqs": 32},
    "vectors": {"runner": "pooling"},
}
"""Arguments of the servers that rows want, besides those of all of them."""


@dataclass(frozen=True, slots=True)
class Row:
    """A request and what may be answered.

    name:    says what is hostile about it; unique.
    target:  of the request line, byte by byte.
    body:    bytes, or what makes them; an iterator is sent in chunks.
    headers: after Host, Authorization, Content-Type and Content-Length; one of the same name replaces ours.
    allowed: statuses; `CLOSED` where hanging up is an answer too.
    names:   the error names one of these fields or says one of these words; empty: any sentence will do.
    plain:   the HTTP parser itself may refuse it, without an error object.
    keyed:   whether the right key is sent.
    work:    a server that accepts it computes honestly, so others may wait for their turn.
    seconds: until the answer must be there, on an otherwise idle server.
    setup:   a key of `SETUPS`.
    """

    name: str
    target: str
    body: bytes | Callable[[], Body] = b""
    headers: Headers = ()
    method: str = "POST"
    allowed: frozenset[int] = frozenset({400})
    names: tuple[str, ...] = ()
    plain: bool = False
    keyed: bool = True
    work: bool = False
    seconds: float = 2.0
    setup: str = "plain"
    large: bool = False

    def make_body(self) -> Body:
        """The body, anew for each sending."""
        return self.body() if callable(self.body) else self.body


@dataclass(frozen=True, slots=True)
class Answer:
    """status: of HTTP, `CLOSED` or `UNANSWERED`. note: what went wrong on the way."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float
    note: str = ""

    @property
    def outcome(self) -> str:
        """The status, or why there is none."""
        return str(self.status) if self.status > CLOSED else f"no answer ({self.note})"


def problems(row: Row, answer: Answer, *, timed: bool = True) -> list[str]:
    """What is wrong with `answer`, as sentences; empty when all is well. timed: whether it may be too late."""
    found = []
    if answer.status not in row.allowed:
        wanted = " or ".join("a closed connection" if code == CLOSED else str(code) for code in sorted(row.allowed))
        found.append(f"{answer.outcome} instead of {wanted}: {answer.body[:200].decode(errors='replace')}")
    elif answer.status >= 400 and not row.plain:
        found += _error_problems(row, answer.body)
    if timed and answer.seconds > row.seconds:
        found.append(f"{answer.seconds:.1f} s instead of at most {row.seconds:g} s")
    return found


def _error_problems(row: Row, body: bytes) -> list[str]:
    if row.method == "HEAD":
        return []
    fields = ANTHROPIC_FIELDS if row.target.startswith("/v1/messages") else OPENAI_FIELDS
    try:
        error = json.loads(body)["error"]
        message, param = error["message"], error.get("param")
    except (ValueError, LookupError, TypeError, AttributeError):
        return [f"no error object: {body[:200].decode(errors='replace')}"]
    if set(error) != fields or not isinstance(message, str) or not message:
        return [f"an error object of another form: {error}"]
    if "Traceback" in message or "object at 0x" in message:
        return [f"an error that shows internals: {message[:200]}"]
    if row.names and param not in row.names and not any(name in message for name in row.names):
        return [f"an error that names none of {', '.join(row.names)}: {message[:200]}"]
    return []
