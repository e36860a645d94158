"""The events of an answer from its first call of a tool server on, held until the calls have run.

Owns: which events are held, and which calls are to run. Never does: run them. Called by: `core_apis.responses.writer`.

The items of a response come one after the other, and the item of such a call ends with its result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from core_apis.responses.tools import OfferedTool, ToolTable
from core_formats.answers.events import AnswerEvent, ArgumentsDelta, CallEnd, CallStart


@dataclass(frozen=True, slots=True)
class HostedCall:
    """A call that the server runs. id: of the call in its answer. arguments: as the model wrote them."""

    id: str
    tool: OfferedTool
    arguments: str


class HostedCalls:
    """The held events of one round. tools: by the name that the model sees."""

    def __init__(self, tools: ToolTable) -> None:
        self._tools = tools
        self._held: deque[AnswerEvent] = deque()

    def __bool__(self) -> bool:
        return bool(self._held)

    def takes(self, event: AnswerEvent) -> bool:
        """Hold an event, if it starts a call of a tool server or follows one. Return whether it is held."""
        holds = bool(self._held) or (isinstance(event, CallStart) and self._runs_here(event))
        if holds:
            self._held.append(event)
        return holds

    def calls(self) -> list[HostedCall]:
        """Return the complete calls of tool servers, in order."""
        found: list[HostedCall] = []
        start: CallStart | None = None
        texts: list[str] = []
        for event in self._held:
            if isinstance(event, CallStart):
                start, texts = event, []
            elif isinstance(event, ArgumentsDelta):
                texts.append(event.text)
            elif isinstance(event, CallEnd) and start is not None and event.complete and self._runs_here(start):
                found.append(HostedCall(start.id, self._tools[start.name], "".join(texts)))
        return found

    def has_client_calls(self) -> bool:
        """Return whether the client has to run one of the held calls."""
        return any(isinstance(event, CallStart) and not self._runs_here(event) for event in self._held)

    def released(self) -> Iterator[tuple[AnswerEvent, str | None]]:
        """Yield the held events in order; an event that needs a result comes with the id of its call."""
        call_id: str | None = None
        while self._held:
            event = self._held.popleft()
            if isinstance(event, CallStart):
                call_id = event.id if self._runs_here(event) else None
            needs = isinstance(event, CallEnd) and event.complete
            yield event, call_id if needs else None

    def _runs_here(self, start: CallStart) -> bool:
        tool = self._tools.get(start.name)
        return tool is not None and tool.kind == "mcp"
