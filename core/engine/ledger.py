"""Which output the client expects next of each live sequence.

Owns: the check of epochs and start indices. Never does: receive or deliver. Called by: the ZMQ client.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.api.errors import EngineDeadError
from core.api.messages import EngineOutput, EngineOutputs, EngineRequest
from core.api.step_plan import SequenceKey


class Ledger:
    """The next start index of every live sequence of one engine epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._next: dict[str, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self._next)

    def admit(self, requests: Iterable[EngineRequest]) -> None:
        """Expect outputs of these sequences, from index 0."""
        for request in requests:
            self._next.setdefault(request.request_id, {})[request.choice] = 0

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what still comes of these requests."""
        for request_id in request_ids:
            self._next.pop(request_id, None)

    def forget_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Drop what still comes of single choices."""
        for request_id, choice in keys:
            choices = self._next.get(request_id)
            if choices is not None:
                choices.pop(choice, None)
                if not choices:
                    del self._next[request_id]

    def accept(self, message: EngineOutputs) -> list[EngineOutput]:
        """The outputs of live sequences; none when the epoch is stale.

        Raises EngineDeadError when a live sequence's tokens do not continue where the last ones ended.
        """
        if message.epoch != self.epoch:
            return []
        accepted = []
        for output in message.outputs:
            choices = self._next.get(output.request_id)
            expected = None if choices is None else choices.get(output.choice)
            if choices is None or expected is None:
                continue
            if output.start != expected:
                raise EngineDeadError(
                    f"Request {output.request_id!r} (choice {output.choice}) continued at token {output.start} where "
                    f"{expected} was expected; the engine lost outputs and cannot be trusted."
                )
            choices[output.choice] = expected + len(output.token_ids)
            accepted.append(output)
            if output.finish_reason is not None:
                self.forget_choices(((output.request_id, output.choice),))
        return accepted
