"""One request sent, and its answer put together, whether it came at once or as a stream.

Owns: `Answer`, `ask`. Never does: judge, or ask again. Called by: the clients of the soak.
"""

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.attack.send import Target
from tests.soak.cases import Case

PIECE = 65536


class Unanswered(Exception):
    """There is no whole answer. retry_after: seconds after which the server wants to be asked again, or None."""

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


@dataclass
class Answer:
    """content: what is compared. longest_gap_s: between two pieces of a stream."""

    content: dict[str, Any]
    longest_gap_s: float = 0.0


@dataclass
class Choice:
    """One choice of a stream, as it grows."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    calls: dict[int, list[str]] = field(default_factory=dict)
    finish_reason: str | None = None
    stop_reason: Any = None


def ask(target: Target, case: Case, limit_s: float, *, stream: bool, pause_s: float = 0.0) -> Answer:
    """Send a case. pause_s: between two reads of a slow client. Raises Unanswered, whatever went wrong."""
    body = case.body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})
    connection = http.client.HTTPConnection(target.host, target.port, timeout=limit_s)
    headers = {"Authorization": f"Bearer {target.key}", "Content-Type": "application/json"}
    try:
        connection.request("POST", case.path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            told = response.read()[:300].decode(errors="replace")
            retry_after = response.getheader("retry-after")
            raise Unanswered(f"{response.status}: {told}", None if retry_after is None else float(retry_after))
        if stream:
            return _streamed(_events(response, pause_s))
        return Answer(_whole(json.loads(response.read())))
    except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
        raise Unanswered(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _events(response: http.client.HTTPResponse, pause_s: float) -> Iterator[tuple[float, dict[str, Any]]]:
    """Seconds since the last piece, and the event. Raises Unanswered for a stream without an end."""
    last = time.monotonic()
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            return
        now = time.monotonic()
        yield now - last, json.loads(line[6:])
        time.sleep(pause_s)
        last = time.monotonic()
    raise Unanswered("the stream has no end")


def _streamed(events: Iterator[tuple[float, dict[str, Any]]]) -> Answer:
    choices: dict[int, Choice] = {}
    usage: dict[str, Any] = {}
    longest = 0.0
    for gap, event in events:
        longest = max(longest, gap)
        if "error" in event:
            raise Unanswered(f"an error in the stream: {event['error']}")
        usage = event.get("usage") or usage
        for part in event["choices"]:
            _grow(choices.setdefault(part["index"], Choice()), part)
    return Answer(_content(choices, usage), longest)


def _grow(choice: Choice, part: dict[str, Any]) -> None:
    said = part.get("delta", part)
    choice.text += said.get("text") or said.get("content") or ""
    choice.token_ids += part.get("token_ids") or []
    choice.logprobs += _scores(part.get("logprobs"))
    choice.finish_reason = part.get("finish_reason") or choice.finish_reason
    choice.stop_reason = part.get("stop_reason") or choice.stop_reason
    for call in said.get("tool_calls") or []:
        name, arguments = choice.calls.setdefault(call.get("index", 0), ["", ""])
        function = call["function"]
        choice.calls[call.get("index", 0)] = [name + (function.get("name") or ""), arguments + function["arguments"]]


def _whole(answer: dict[str, Any]) -> dict[str, Any]:
    choices = {}
    for part in answer["choices"]:
        choice = choices[part["index"]] = Choice()
        said = part.get("message", part)
        calls = said.get("tool_calls") or []
        numbered = [{"index": index, **call} for index, call in enumerate(calls)]
        _grow(choice, {**part, "delta": {**said, "tool_calls": numbered}})
    return _content(choices, answer["usage"])


def _scores(logprobs: dict[str, Any] | None) -> list[Any]:
    """The chosen token and its score at each position, of both routes."""
    if not logprobs:
        return []
    if "content" in logprobs:
        return [[entry["token"], entry["logprob"], entry["top_logprobs"]] for entry in logprobs["content"]]
    rows = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    return [list(row) for row in rows]


def _content(choices: dict[int, Choice], usage: dict[str, Any]) -> dict[str, Any]:
    counted = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    told = {index: vars(choice) for index, choice in sorted(choices.items())}
    return {"choices": told, "usage": counted}
