"""Adapters on all ranks of an engine.

Owns: `RankAdapters`, the reading on one rank; `LeadingAdapters`, rank 0's part: what the other ranks must read, and that all of
them place an adapter, or none. Never does: read a file itself (the worker does), or send (the executor does). Called by: the
executor, the other ranks.

Rank 0 reads in a thread of the engine's. The other ranks are told to read the same, each in a thread of its own beside its
steps. Between two steps all of them then place the adapter; a rank that has not read it by then does so first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

import msgspec

from core.api.adapters import AdapterFacts, AdapterSource
from core.api.errors import UserError
from core.api.weights import WeightsState
from core_distributed.calls import Call, Outcome, failure_of
from core_runtime.executor.worker import Worker

SENT: Final = "sent:"
"""Beginning of the paths of adapters that lie in memory of the engine's process."""


class Reading(msgspec.Struct, frozen=True):
    """What the other ranks do while rank 0 reads an adapter. is_over: rank 0 has failed, so that nobody needs it."""

    source: AdapterSource
    is_over: bool = False


class RankAdapters:
    """The adapters of one rank.

    worker: reads and places them. state: returns the state of the weights that they are read for.
    """

    def __init__(self, worker: Worker, state: Callable[[], WeightsState]) -> None:
        self._worker = worker
        self._state = state
        self._begun: dict[str, Future[AdapterFacts]] = {}
        self._thread: ThreadPoolExecutor | None = None

    def read(self, source: AdapterSource) -> AdapterFacts:
        """Read an adapter and keep it. Raises UserError, OSError."""
        return self._worker.read_adapter(source, self._state())

    def follow(self, reading: Reading) -> None:
        """Begin to read an adapter in a thread, or drop one that nobody needs."""
        path = reading.source.path
        if not reading.is_over:
            self._thread = self._thread or ThreadPoolExecutor(1, "adapters")
            self._begun = {other: future for other, future in self._begun.items() if not future.done()}
            self._begun[path] = self._thread.submit(self.read, reading.source)
            return
        begun = self._ended(path)
        if begun is not None and begun.exception() is None:
            placed, digest = self._worker.placed(), begun.result().digest
            if digest not in placed.rows:
                placed.drop(digest)

    def place(self, digest: str, source: AdapterSource) -> None:
        """Let steps use an adapter, which is read first if it is not. Raises UserError, OSError."""
        placed = self._worker.placed()
        self._ended(source.path)
        # A reading that has failed, or found other weights, is repeated, so that its error is that of now.
        if placed.find(digest) is None:
            facts = self.read(source)
            if facts.digest != digest:
                if facts.digest not in placed.rows:
                    placed.drop(facts.digest)
                raise UserError(
                    f"Adapter '{source.name}': {source.path} holds other weights than rank 0 has read there; load it again."
                )
        placed.place(digest)

    def drop(self, digest: str, source: AdapterSource) -> None:
        """Forget an adapter that no sequence uses."""
        self._ended(source.path)
        self._worker.placed().drop(digest)

    def close(self) -> None:
        """Wait for the adapter that is being read."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _ended(self, path: str) -> Future[AdapterFacts] | None:
        """Wait until the reading of a path that was begun has ended; returns it, None if there is none."""
        begun = self._begun.pop(path, None)
        if begun is not None:
            wait([begun])
        return begun


class LeadingAdapters:
    """Rank 0's part.

    own: adapters of rank 0. ask: carries a call out on all ranks. tell: has the other ranks follow, without an answer.
    """

    def __init__(
        self, own: RankAdapters, ask: Callable[[Call], Sequence[Outcome]], tell: Callable[[Reading], None]
    ) -> None:
        self._own = own
        self._ask = ask
        self._tell = tell
        self._untold: deque[Reading] = deque()
        self._sources: dict[str, AdapterSource] = {}

    def read(self, source: AdapterSource) -> AdapterFacts:
        """Read rank 0's share of an adapter; called in another thread than that of the steps. Raises UserError, OSError."""
        if source.path.startswith(SENT):
            raise UserError(
                f"Adapter '{source.name}' lies in shared memory, which several ranks cannot read; save it, and give its path."
            )
        self._untold.append(Reading(source))
        try:
            facts = self._own.read(source)
        except BaseException:
            self._untold.append(Reading(source, is_over=True))
            raise
        self._sources[facts.digest] = source
        return facts

    @property
    def has_untold(self) -> bool:
        """Whether the other ranks have something to read, or to drop, of which they do not know yet."""
        return bool(self._untold)

    def tell(self) -> None:
        """Have the other ranks read what rank 0 reads. Called in the thread of the steps, between two of them."""
        while self._untold:
            self._tell(self._untold.popleft())

    def place(self, digest: str) -> None:
        """Let later plans use an adapter that was read, on all ranks or none. Raises UserError."""
        source = self._sources.get(digest)
        if source is None:
            raise UserError(f"The adapter {digest:.12} was not read; read it first.")
        failure = self._on_all("place", digest, source)
        if failure:
            del self._sources[digest]
            second = self._on_all("drop", digest, source)
            raise UserError(f"{failure} ({second})" if second else failure)

    def drop(self, digest: str) -> None:
        """Forget an adapter that no sequence uses, on all ranks. Raises UserError."""
        source = self._sources.pop(digest, None)
        if source is None:
            return
        failure = self._on_all("drop", digest, source)
        if failure:
            raise UserError(failure)

    def _on_all(self, name: str, digest: str, source: AdapterSource) -> str:
        """Carry a call out on all ranks; returns why the first one failed, or an empty string."""
        self.tell()
        return failure_of(self._ask(Call(name, digest=digest, source=source)))
