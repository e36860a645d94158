"""Expected outputs of a client's live sequences.

Owns: the handles of the client's sequences, the check of epochs and start indices, and the expansion of columns.
Never does: receive or deliver. Called by: both clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from core.api.errors import EngineDeadError
from core.api.messages import CLIENT_SHIFT, EngineOutput, EngineOutputs, EngineRequest
from core.api.step_plan import SequenceKey


@dataclass(slots=True)
class Expected:
    """One live sequence as the client expects it.

    next_start: number of output tokens that have arrived.
    begin_time: time at which its prompt began to be computed, until an output has carried it; 0.0 before and after.
    """

    key: SequenceKey
    handle: int
    next_start: int = 0
    begin_time: float = 0.0


class Ledger:
    """The next start index of every live sequence of one client and engine epoch. client: the engine's number of the client."""

    def __init__(self, epoch: int, client: int = 0) -> None:
        self.epoch = epoch
        self._live: dict[str, dict[int, Expected]] = {}
        self._by_handle: dict[int, Expected] = {}
        self._next_handle = client << CLIENT_SHIFT

    def __len__(self) -> int:
        return len(self._live)

    def admit(self, requests: Iterable[EngineRequest]) -> None:
        """Assign handles to these sequences and expect their outputs, after the tokens of resumed ones."""
        for request in requests:
            request.handle = self._next_handle
            # Never used again, so that late outputs of an aborted sequence find no other one.
            self._next_handle += 1
            num_given = 0 if request.resume is None else len(request.resume.output_token_ids)
            expected = Expected(request.key, request.handle, num_given)
            self._live.setdefault(request.request_id, {})[request.choice] = expected
            self._by_handle[request.handle] = expected

    def name_of(self, handle: int) -> str | None:
        """Return the request id of the live sequence with this handle, or None."""
        expected = self._by_handle.get(handle)
        return None if expected is None else expected.key[0]

    def forget(self, request_ids: Iterable[str]) -> None:
        """Ignore all further outputs of these requests."""
        for request_id in request_ids:
            for expected in list(self._live.get(request_id, {}).values()):
                self._drop(expected)

    def forget_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Ignore all further outputs of single choices."""
        for request_id, choice in keys:
            expected = self._live.get(request_id, {}).get(choice)
            if expected is not None:
                self._drop(expected)

    def accept(self, message: EngineOutputs) -> list[EngineOutput]:
        """Return the outputs of live sequences, including those in columns; none when the epoch is stale.

        Sequences are identified by their handles, so late outputs of an aborted request are not mistaken for those of a new one
        with the same id. Outputs get the client's own id back, whatever the engine calls the request.

        Raises EngineDeadError when a live sequence's tokens do not continue where the last ones ended.
        """
        if message.epoch != self.epoch:
            return []
        for begun in message.begun:
            expected = self._by_handle.get(begun.handle)
            if expected is not None:
                expected.begin_time = begun.time
        accepted = self._of_columns(message) if message.tokens else []
        for output in message.outputs:
            expected = self._by_handle.get(output.handle)
            if expected is not None:
                self._continue(expected, output)
                accepted.append(output)
        return accepted

    def _of_columns(self, message: EngineOutputs) -> list[EngineOutput]:
        """Expand the columns of a step, one token for each sequence."""
        accepted: list[EngineOutput] = []
        for handle, start, token_id in message.tokens:
            expected = self._by_handle.get(handle)
            if expected is not None:
                if start != expected.next_start:  # compared here, to save a call for every token
                    self._check(expected, start)
                expected.next_start = start + 1
                accepted.append(EngineOutput(*expected.key, start, [token_id]))
                if expected.begin_time:
                    _tell_begin(expected, accepted[-1])
        return accepted

    def _continue(self, expected: Expected, output: EngineOutput) -> None:
        if not _is_refusal(output):
            self._check(expected, output.start)
        expected.next_start += len(output.token_ids)
        output.request_id, output.choice = expected.key
        if expected.begin_time:
            _tell_begin(expected, output)
        if output.finish_reason is not None:
            self._drop(expected)

    def _drop(self, expected: Expected) -> None:
        del self._by_handle[expected.handle]
        request_id, choice = expected.key
        choices = self._live[request_id]
        del choices[choice]
        if not choices:
            del self._live[request_id]

    def _check(self, expected: Expected, start: int) -> None:
        if start != expected.next_start:
            request_id, choice = expected.key
            raise EngineDeadError(
                f"Request {request_id!r} (choice {choice}) continued at token {start} where {expected.next_start} was "
                "expected; the engine lost outputs and cannot be trusted."
            )


def _tell_begin(expected: Expected, output: EngineOutput) -> None:
    output.begin_time = expected.begin_time
    expected.begin_time = 0.0


def _is_refusal(output: EngineOutput) -> bool:
    """Whether a request ended before it began in this engine, whatever tokens it got from an earlier one."""
    return output.start == 0 and output.finish_reason == "error" and not output.token_ids
