"""Streams as a client reads them: events with their ids."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Event:
    """One event. id: empty without one."""

    id: str = ""
    name: str = ""
    data: str = ""

    @property
    def body(self) -> dict[str, Any]:
        """The data of an event that is no [DONE]."""
        decoded: dict[str, Any] = json.loads(self.data)
        return decoded

    @property
    def number(self) -> int:
        return int(self.id.rpartition(":")[2])


@dataclass
class Reading:
    """What was read of a stream so far."""

    events: list[Event] = field(default_factory=list)

    @property
    def last_id(self) -> str:
        return next(event.id for event in reversed(self.events) if event.id)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [event.body for event in self.events if event.data != "[DONE]"]

    @property
    def done(self) -> bool:
        return self.events[-1].data == "[DONE]"

    @property
    def answer_id(self) -> str:
        return self.last_id.rpartition(":")[0].rpartition(":")[0]

    def texts(self) -> dict[int, str]:
        """The text of each choice of a conversation or a completion."""
        found: dict[int, str] = {}
        for body in self.bodies:
            for choice in body.get("choices", ()):
                text = choice["delta"].get("content") if "delta" in choice else choice["text"]
                found[choice["index"]] = found.get(choice["index"], "") + (text or "")
        return found

    def check_numbers(self) -> None:
        """Every number from 0 on comes once."""
        assert [event.number for event in self.events] == list(range(len(self.events)))


def events_of(answer: httpx.Response) -> Iterator[Event]:
    assert answer.status_code == 200, answer.read()
    assert answer.headers["content-type"].startswith("text/event-stream")
    event = Event()
    for line in answer.iter_lines():
        if not line:
            yield event
            event = Event()
            continue
        key, _, value = line.partition(": ")
        setattr(event, {"id": "id", "event": "name", "data": "data"}[key], value)


def read(
    http: httpx.Client, path: str, body: dict[str, Any], into: Reading, most: int = 10**9, **headers: str
) -> Reading:
    """Read a stream, which goes on behind what was read already, until its end or until `most` events are there."""
    if into.events:
        headers["Last-Event-ID"] = into.last_id
    with http.stream("POST", path, json={"stream": True, **body}, headers=headers) as answer:
        for event in events_of(answer):
            into.events.append(event)
            if len(into.events) >= most:
                break
    return into


def read_again(http: httpx.Client, path: str, **headers: str) -> Reading:
    """Read a kept stream."""
    with http.stream("GET", path, headers=headers) as answer:
        return Reading(list(events_of(answer)))
