"""The adapters in the memory of an executor.

Owns: `AdapterHolder`: what is read, placed and dropped, and the record of it for the next engine. Never does: keep requests,
or start a thread. Called by: the adapters' observer, between steps.

On a CPU host and device are one memory, so that an adapter in memory is always placed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from core.api.adapters import AdapterFacts, AdapterSource
from core.api.errors import ConfigError, CoreError
from core.engine.observer import Engine
from core_adapters.serving.book import AdapterBook
from core_adapters.serving.executor_part import AdaptingExecutor
from core_adapters.serving.record import AdaptersRecord, KeptAdapter
from core_adapters.serving.sent_adapters import SentAdapters
from core_supervision.persistent_flags import PersistentRecord

logger = logging.getLogger(__name__)


class AdapterHolder:
    """The adapters of one engine.

    capacity: how many may be in memory.
    storage:  where the next engine reads of them.
    book:     names and adapters.
    sent:     those that came from memory.
    """

    def __init__(
        self,
        engine: Engine,
        executor: AdaptingExecutor,
        capacity: int,
        storage: PersistentRecord[AdaptersRecord],
        lasting_file: int | None,
    ) -> None:
        self.book = AdapterBook(storage.read() or AdaptersRecord())
        self.sent = SentAdapters(lasting_file, self._paths())
        self.executor = executor
        self._engine = engine
        self._capacity = capacity
        self._storage = storage
        self._asleep: list[KeptAdapter] = []
        self._weights = self._weights_now()

    @property
    def is_asleep(self) -> bool:
        """Whether memory of the engine is released, so that nothing can be read."""
        return self._engine.scheduler.live_stats.sleep_level > 0

    @property
    def weight_version(self) -> str:
        """The version of the base's weights."""
        return self._engine.scheduler.live_stats.weight_version

    def read(self, source: AdapterSource) -> AdapterFacts:
        """Read an adapter; called in another thread than that of the steps. Raises UserError, OSError."""
        return self.executor.read_adapter(self.sent.reachable(source))

    def begin(self, sources: tuple[AdapterSource, ...]) -> None:
        """Read the adapters of the engine before this one, or, if there was none, those of the configuration.

        Raises ConfigError for one of the configuration that cannot be served.
        """
        if self.book.number:
            # One of a dead engine that cannot be read any more must not keep the others from going on.
            self._asleep = self.book.resident
            for kept in self._asleep:
                kept.is_resident = False
            self.wake()
            self.changed()
            return
        for source in sources:
            try:
                facts = self.executor.read_adapter(source)
            except (CoreError, OSError) as error:
                raise ConfigError([f"--lora-modules {source.name}={source.path}: {sentence_of(error)}"]) from error
            self.enter(source, facts, {})

    def enter(self, source: AdapterSource, facts: AdapterFacts, in_use: Mapping[str, int]) -> None:
        """Let a name stand for an adapter that was read, and keep it in memory if there is room."""
        self.book.enter(source, facts, self.weight_version)
        try:
            if not self.place(facts.digest, in_use):
                self.discard(facts.digest)
        except Exception:
            self.book.forget_name(source.name)
            raise
        finally:
            self.changed()
        logger.info(
            "Adapter '%s' (%.12s, rank %d, %.1f MB) is loaded from %s.",
            source.name, facts.digest, facts.rank, facts.nbytes / 1e6, source.path,
        )  # fmt: skip

    def make_room(self, in_use: Mapping[str, int]) -> bool:
        """Make a place in memory for another adapter, if need be that of the one whose last use is longest ago.

        Returns False, without a change, when all adapters in memory are pinned or in use.
        """
        while len(self.book.resident) >= self._capacity:
            idle = self.book.idle(in_use)
            if idle is None:
                return False
            self.drop(idle)
        return True

    def place(self, digest: str, in_use: Mapping[str, int]) -> bool:
        """Let steps use an adapter that was read; False, without a change, when there is no room."""
        if self.book.known[digest].is_resident:
            return True
        if not self.make_room(in_use):
            return False
        self._between_steps(lambda: self.executor.place_adapter(digest))
        self.book.known[digest].is_resident = True
        self.book.touch(digest)
        self.store()
        return True

    def take(self, digest: str, facts: AdapterFacts, in_use: Mapping[str, int]) -> bool:
        """Place an adapter that was read again; False: there is no room, or it was forgotten meanwhile.

        Raises CoreError when its files have changed.
        """
        kept = self.book.known.get(digest)
        if kept is None:
            return False
        self.check_same(kept, facts)
        return self.place(digest, in_use)

    def discard(self, digest: str) -> None:
        """Take an adapter that was only read out of memory; one that is placed stays."""
        kept = self.book.known.get(digest)
        if kept is None or not kept.is_resident:
            self.drop(digest)

    def drop(self, digest: str) -> None:
        """Take an adapter that no request uses out of memory."""
        self._between_steps(lambda: self.executor.drop_adapter(digest))
        kept = self.book.known.get(digest)
        if kept is not None:
            kept.is_resident = False

    def drop_nameless(self, in_use: Mapping[str, int]) -> None:
        """Forget the adapters without a name whose last request has ended."""
        for digest in self.book.nameless - in_use.keys():
            self.drop(digest)
            self.book.forget(digest)
            self.store()

    def follow_memory(self) -> Mapping[str, str]:
        """Give adapters up after the engine has fallen asleep, and read them again after it woke or got new weights.

        Returns a sentence for each adapter that cannot be used any more, by digest.
        """
        if self.is_asleep:
            self._asleep = self._asleep or self.book.resident
            for kept in self.book.resident:
                self.drop(kept.facts.digest)
            return {}
        weights = self._weights_now()
        if weights != self._weights:
            self._weights = weights
            self._asleep = self._asleep or self.book.resident
            stale = ", ".join(sorted(name for kept in self.book.known.values() for name in kept.names))
            if stale:
                logger.warning("The base model has new weights; these adapters were made for others: %s.", stale)
            for kept in self._asleep:
                self.drop(kept.facts.digest)
        return self.wake() if self._asleep else {}

    def wake(self) -> Mapping[str, str]:
        """Read and place the adapters that were in memory before; returns a sentence for each that failed, by digest."""
        failed: dict[str, str] = {}
        if self.is_asleep:
            return failed
        for kept in self._asleep:
            digest = kept.facts.digest
            try:
                self.check_same(kept, self.read(kept.source))
                self.place(digest, {})
            except (CoreError, OSError) as error:
                failed[digest] = f"The adapter '{kept.source.name}' cannot be used any more: {sentence_of(error)}"
                logger.error("%s", failed[digest])
        self._asleep = []
        return failed

    def check_same(self, kept: KeptAdapter, facts: AdapterFacts) -> None:
        """Raise CoreError, and drop what was read, when the files of an adapter have changed since it was loaded."""
        if facts.digest == kept.facts.digest:
            return
        self.discard(facts.digest)
        raise CoreError(
            f"{kept.source.path} holds other weights than when it was loaded; load it again (load_inplace), or bring the "
            "files back."
        )

    def changed(self) -> None:
        """Tell clients that names have changed, and record it."""
        self._engine.scheduler.live_stats.adapters_number = self.book.number
        self._engine.has_news = True
        self.store()

    def store(self) -> None:
        """Write the record for the next engine."""
        try:
            self._storage.write(self.book.record())
        except OSError as error:
            # What the record before names must stay in memory, too.
            logger.error("The next engine will not know of the adapters as they are now: %s.", error.strerror)
        else:
            self.free_sent()

    def free_sent(self) -> None:
        """Free the memory of adapters that were sent, and that no name and no request uses any more."""
        if not self.sent.is_empty:
            self.sent.keep_only(self._paths())

    def _paths(self) -> set[str]:
        return {kept.source.path for kept in self.book.known.values()}

    def _weights_now(self) -> tuple[int, str]:
        return self._engine.config.weights.number, self.weight_version

    def _between_steps(self, call: Callable[[], None]) -> None:
        self._engine.queue.beside(call)


def sentence_of(error: BaseException) -> str:
    """Return the sentence about an adapter that cannot be read."""
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'} cannot be read ({error.strerror or error})."
    return str(error)
