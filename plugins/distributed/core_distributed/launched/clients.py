"""The clients of one engine in a script that all ranks run: rank 0 has the engine, the others get its answers.

Owns: `LeadingClient`, `FollowingClient`, and the check that all ranks make the same calls. Never does: schedule or compute.
Called by: `LLMEngine`.

A schedule depends on times, so ranks that each schedule for themselves would compute different steps. Only rank 0 has a
scheduler; the others compute what it plans, in children of theirs, and return what it returns.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from core.api.config import EngineConfig
from core.api.errors import CoreError, EngineDeadError, PluginError, RequestError, UserError, UtilityError
from core.api.messages import EngineOutput, EngineRequest
from core.api.stats import SchedulerStats
from core.api.step_plan import SequenceKey
from core_distributed.hosts.node import NodeServer
from core_distributed.launched.answers import LAST_S, Answer, Failure, Receiver, Sender
from core_distributed.launched.meeting import Launched, meet
from core_distributed.launched.torch_group import open_group
from core_supervision.link.inproc import InprocClient
from core_supervision.link.ledger import Ledger

logger = logging.getLogger(__name__)

Value = TypeVar("Value")
RAISED: Final = {kind.__name__: kind for kind in (UserError, EngineDeadError, UtilityError)}
"""Errors that the other ranks raise as rank 0 did; all others become a CoreError with their text."""
STEP: Final = tuple[list[EngineOutput], SchedulerStats]
END_S: Final = 10.0
"""Limit of seconds until this host's rank has ended."""


def launched_client(config: EngineConfig, number: int) -> LeadingClient | FollowingClient:
    """Meet the other ranks and return this rank's client. number: of this rank. Raises CoreError, UserError."""
    launched = meet(config, number)
    try:
        open_group(launched.store, launched.arguments.address, number, launched.size)
        return FollowingClient(launched) if number else LeadingClient(launched)
    except BaseException:
        launched.close()
        raise


class LeadingClient:
    """Rank 0's client: that of an engine in this process, whose answers also go to the other ranks.

    Statistics are part of each step's answer, so that rank 0 alone may ask for them.
    """

    def __init__(self, launched: Launched) -> None:
        self._launched = launched
        self._number = 0
        self._sender = Sender(launched)
        try:
            self._client = InprocClient(launched.config)
        except Exception as error:
            self._sender.gather(LAST_S)
            self._tell(Answer(0, "start", failure=_failure(error)))
            self._sender.close()
            if isinstance(error, PluginError):  # the others would have to leave out the same plugin
                raise CoreError(str(error)) from error
            raise
        self._sender.gather(launched.limit_s)
        self._sender.send(Answer(0, "start", value=msgspec.msgpack.encode(self._client.stats())))
        self.core = _Core(self._client.core.config, self._of_core)
        # A script may end without `close`; the last answers are sent nevertheless.
        self._flush = weakref.finalize(self, self._sender.close)

    @property
    def worker(self) -> Any:
        """Rank 0's worker."""
        return self._client.worker

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Queue sequences."""
        self._share("add", _asked(requests), lambda: self._client.add(requests))

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort all choices of these requests; unknown ids are ignored."""
        self._share("abort", request_ids, lambda: self._client.abort(request_ids))

    def abort_choices(self, keys: Sequence[SequenceKey]) -> None:
        """Abort single choices; unknown ones are ignored."""
        self._share("abort_choices", keys, lambda: self._client.abort_choices(keys))

    def has_work(self) -> bool:
        """Whether another step would compute or report something."""
        return self._share("has_work", (), self._client.has_work)

    def step(self) -> list[EngineOutput]:
        """Run one step on all ranks and return its outputs."""
        outputs, _ = self._share("step", (), lambda: (self._client.step(), self._client.stats()))
        return outputs

    def stats(self) -> SchedulerStats:
        """Return the present state of the engine."""
        return self._client.stats()

    def reset_prefix_cache(self, *, restart: bool = False) -> bool:
        """Drop all cached prefixes; see `InprocClient`."""
        return self._share("reset_prefix_cache", restart, lambda: self._client.reset_prefix_cache(restart=restart))

    def close(self) -> None:
        """End the engine and its ranks; may be called twice."""
        self._client.close()
        self._flush()
        self._launched.close()

    def _of_core(self, call: str, arguments: Mapping[str, Any] | None) -> Any:
        core = self._client.core
        if call == "is_halted":
            return self._share(call, (), lambda: bool(core.is_halted))
        return self._share(call, arguments, lambda: core.call(call, arguments))

    def _share(self, call: str, arguments: object, work: Callable[[], Value]) -> Value:
        """Make a call and hand its answer on."""
        self._number += 1
        digest = _digest(arguments)
        try:
            value = work()
        except Exception as error:
            self._tell(Answer(self._number, call, digest, failure=_failure(error)))
            raise
        self._sender.send(Answer(self._number, call, digest, msgspec.msgpack.encode(value)))
        return value

    def _tell(self, answer: Answer) -> None:
        """Hand an error on, which may be that another rank is gone."""
        try:
            self._sender.send(answer)
        except CoreError as error:
            logger.warning("%s", error)


class FollowingClient:
    """Another rank's client: a rank of this host computes in a child, and each call returns what it returned on rank 0."""

    def __init__(self, launched: Launched) -> None:
        self._launched = launched
        self._number = 0
        self._error: CoreError | None = None
        self._closed = False
        self._ledger = Ledger(0)
        self._server = NodeServer(launched.config, launched.arguments, launched.number)
        self._receiver = Receiver(launched, self._why_over)
        self._thread = threading.Thread(target=self._serve, name=f"rank-{launched.number}", daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, self._server.stop)
        try:
            self._stats: SchedulerStats = self._take("start", (), SchedulerStats)
        except BaseException:
            self.close()
            raise
        self.core = _Core(launched.config, self._of_core)

    @property
    def worker(self) -> NoReturn:
        """Raise RequestError: this rank's worker is in a process of its own."""
        raise RequestError(
            f"The worker of rank {self._launched.number} is in a process of its own; ask rank 0 for its own."
        )

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Expect the answers of these sequences, which rank 0 has queued."""
        self._ledger.admit(requests)
        self._take("add", _asked(requests), None)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Expect no further answers of these requests."""
        self._take("abort", request_ids, None)

    def abort_choices(self, keys: Sequence[SequenceKey]) -> None:
        """Expect no further answers of these choices."""
        self._take("abort_choices", keys, None)

    def has_work(self) -> bool:
        """Whether another step would compute or report something."""
        return bool(self._take("has_work", (), bool))

    def step(self) -> list[EngineOutput]:
        """Return the outputs of rank 0's step."""
        outputs, self._stats = self._take("step", (), STEP)
        return list(outputs)

    def stats(self) -> SchedulerStats:
        """Return the state of rank 0's engine after its latest step."""
        return self._stats

    def reset_prefix_cache(self, *, restart: bool = False) -> bool:
        """Return whether rank 0 has dropped all cached prefixes."""
        return bool(self._take("reset_prefix_cache", restart, bool))

    def close(self) -> None:
        """End this host's rank; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._stop()
        self._thread.join(END_S)
        self._receiver.close()
        self._launched.close()

    def _of_core(self, call: str, arguments: Mapping[str, Any] | None) -> Any:
        return self._take(call, () if call == "is_halted" else arguments, bool if call == "is_halted" else Any)

    def _take(self, call: str, arguments: object, kind: Any) -> Any:
        """Return rank 0's answer to the same call. Raises what rank 0 raised, CoreError when it has made another call."""
        answer = self._receiver.next()
        name = f"Rank {self._launched.number}"
        same = "all ranks of --distributed-executor-backend external_launcher run the same script"
        if (answer.number, answer.call) != (self._number, call):
            raise CoreError(f"{name} has made another call ({call}) than rank 0 ({answer.call}): {same}.")
        if self._number and answer.digest != _digest(arguments):
            raise CoreError(
                f"{name} has made the call {call} with other arguments than rank 0: {same}, with the same inputs."
            )
        self._number += 1
        if answer.failure is not None:
            raise _raised(answer.failure)
        return msgspec.msgpack.decode(answer.value, type=kind)

    def _serve(self) -> None:
        try:
            self._server.serve_one()
        except CoreError as error:
            self._error = error

    def _why_over(self) -> str:
        if self._thread.is_alive():
            return ""
        return str(self._error) if self._error is not None else "The engine of rank 0 has ended."


class _Core:
    """An engine by the names of its calls. config: its configuration. ask: makes a call on all ranks."""

    def __init__(self, config: EngineConfig, ask: Callable[[str, Mapping[str, Any] | None], Any]) -> None:
        self.config = config
        self._ask = ask

    @property
    def is_halted(self) -> bool:
        """Whether no step computes anything until a further call."""
        return bool(self._ask("is_halted", None))

    def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a utility. Raises UtilityError."""
        return self._ask(method, arguments)


def _asked(requests: Sequence[EngineRequest]) -> list[Any]:
    """Return what the same request has in common on all ranks: seeds may be drawn, and clocks differ."""
    return [[each.request_id, each.choice, each.prompt_token_ids, each.params] for each in requests]


def _digest(arguments: object) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(arguments, enc_hook=repr)).digest()[:16]


def _failure(error: Exception) -> Failure:
    if isinstance(error, RequestError):
        return Failure("RequestError", str(error), error.param, error.status, error.code)
    return Failure(type(error).__name__, str(error) or type(error).__name__)


def _raised(failure: Failure) -> CoreError:
    if failure.kind == "RequestError":
        return RequestError(failure.text, param=failure.param, status=failure.status, code=failure.code)
    return RAISED.get(failure.kind, CoreError)(failure.text)
