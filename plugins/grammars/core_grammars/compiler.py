"""Compiled grammars for requests: from a cache, or from a helper process.

Owns: `GrammarCompiler`: the order of backends, the cache, the merging of concurrent requests for equal grammars. Never
does: compile, import a backend's library, or block an event loop. Called by: `AsyncEngine` (asyncio) and `LLM`
(blocking).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, LifoQueue

import msgspec

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError, RequestError, nearest
from core.api.structured_outputs import FIELD, CompiledGrammar, StructuredOutputsParams
from core.plugin.kinds import normalize
from core_grammars.compile_helper import CompileHelper
from core_grammars.compile_process import Job, Start
from core_grammars.compile_queue import CompileQueue
from core_grammars.names import note, served_backend
from core_grammars.spec import grammar_spec, size_of
from core_supervision.helpers.messages import Refusal
from core_tokens.tokenizer import Tokenizer

logger = logging.getLogger("core.grammars")

SMALL_SPEC = 16 * 1024
"""Limit on the characters of a specification that is validated on the event loop, in less than a millisecond."""
NUM_HELPERS = 2
"""Number of processes, so that one slow grammar does not delay all others."""
MAX_NOTED = 512
"""Limit on the other engines' backend names remembered as logged."""
ENTRY_BYTES = 512
"""Overhead of a cache entry in bytes, besides its data."""
FIRST = StructuredOutputsParams(json_object=True)
"""First compilation of a helper, which loads its libraries before a request waits for them."""
NO_TOKENIZER = "needs a tokenizer, and the model is served without one; ask without it, or start with --tokenizer"


class GrammarCompiler:
    """The grammar compiler of one engine. It starts no process before the first grammar.

    tokenizer: of the served model; None, or one that refuses texts, if the model has none.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer | None) -> None:
        self._config = config
        self._limits = config.structured_outputs
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._cache: OrderedDict[bytes, CompiledGrammar | Refusal] = OrderedDict()
        self._cached_bytes = 0
        self._queue = CompileQueue(NUM_HELPERS)
        self._jobs: dict[bytes, Job] = {}
        self._pending: dict[bytes, Future[CompiledGrammar]] = {}
        self._threads = ThreadPoolExecutor(NUM_HELPERS, "core-engine-grammars")
        self._helpers: LifoQueue[CompileHelper] = LifoQueue()
        self._all_helpers: list[CompileHelper] = []
        self._noted: set[str] = set()
        self._closed = False

    async def compiled(self, params: StructuredOutputsParams, tenant: str = "") -> CompiledGrammar:
        """Return the grammar of a request, without blocking the event loop. Raises RequestError.

        tenant: the request's tenant; tenants take turns. Empty: there are none. When a caller is cancelled, the
        compilation continues for other waiters and for the cache.
        """
        is_small = _is_small(params)
        found = self._find(params, tenant) if is_small else await asyncio.to_thread(self._find, params, tenant)
        if isinstance(found, CompiledGrammar):
            return found
        return await asyncio.shield(asyncio.wrap_future(found))

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Return the grammar of a request, blocking the calling thread."""
        found = self._find(params)
        return found if isinstance(found, CompiledGrammar) else found.result()

    def warm(self) -> None:
        """If configured, start a helper and load the first backend in the background."""
        if self._limits.warm and self._tokenizer is not None and not self._tokenizer.refusal:
            with contextlib.suppress(RequestError):  # the first request gets the error
                self._find(FIRST)

    def close(self) -> None:
        """Terminate the helpers; pending compilations fail."""
        with self._lock:
            self._closed = True
            helpers = self._all_helpers.copy()
        for helper in helpers:
            helper.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            waiting = [self._pending.pop(key) for key in self._queue.clear()]
        for future in waiting:
            future.set_exception(EngineDeadError("The engine was closed; start another one."))

    def _find(self, params: StructuredOutputsParams, tenant: str = "") -> CompiledGrammar | Future[CompiledGrammar]:
        if self._tokenizer is None or self._tokenizer.refusal:
            raise RequestError(f"{FIELD} {NO_TOKENIZER}.", param=FIELD)
        job = Job(grammar_spec(params, self._limits), self._backends(params))
        key = hashlib.sha256(msgspec.msgpack.encode(job)).digest()
        with self._lock:
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
                return _grammar_of(known)
            pending = self._pending.get(key)
            if pending is None:
                return self._submitted(key, job, tenant)
            if key in self._queue:
                with contextlib.suppress(RequestError):  # without a place of its own it waits in other tenants' lines
                    self._queue.put(tenant, key)
            return pending

    def _submitted(self, key: bytes, job: Job, tenant: str) -> Future[CompiledGrammar]:
        """Return a compilation with one more waiter; the lock must be held."""
        if self._closed:
            raise EngineDeadError("The engine was closed; start another one.")
        self._queue.put(tenant, key)
        future: Future[CompiledGrammar] = Future()
        self._pending[key] = future
        self._jobs[key] = job
        self._threads.submit(self._work)
        return future

    def _work(self) -> None:
        """Compile queued grammars in a thread, until none may start."""
        while True:
            with self._lock:
                taken = self._queue.take()
                if taken is None:
                    return
                tenant, key = taken
                job, future = self._jobs.pop(key), self._pending[key]
            self._compile(key, job, future)
            with self._lock:
                self._queue.done(tenant)

    def _compile(self, key: bytes, job: Job, future: Future[CompiledGrammar]) -> None:
        """Compile one grammar, cache it, and notify the waiters."""
        helper: CompileHelper | None = None
        try:
            helper = self._helper()
            found = helper.compiled(job)
            self._keep(key, found)
            future.set_result(_grammar_of(found))
        except BaseException as error:  # waiters must be notified of any error
            self._forget(key)
            future.set_exception(error)
        finally:
            if helper is not None:
                self._helpers.put(helper)

    def _helper(self) -> CompileHelper:
        """Return a free helper: the one used last, otherwise a new one."""
        try:
            return self._helpers.get_nowait()
        except Empty:
            pass
        assert self._tokenizer is not None
        rows = [row for row in self._config.plugins.table if row.kind == "grammar"]
        start = Start(
            tokenizer=self._tokenizer.snapshot,
            vocab_size=self._config.model.vocab_size,
            stop_ids=list(self._config.model.eos_token_ids),
            table=tuple(rows),
            max_compiled_size=self._limits.max_compiled_size,
            compile_memory=self._limits.compile_memory,
        )
        stays = self._limits.warm and not self._all_helpers
        helper = CompileHelper(start, self._limits.compile_timeout, stays=stays)
        with self._lock:
            self._all_helpers.append(helper)
            if self._closed:
                helper.close()
        return helper

    def _forget(self, key: bytes) -> None:
        with self._lock:
            self._pending.pop(key, None)

    def _keep(self, key: bytes, found: CompiledGrammar | Refusal) -> None:
        """Cache a result, evicting the least recently used."""
        with self._lock:
            del self._pending[key]
            if isinstance(found, Refusal) and (found.code or found.details):
                return  # not cached: it may succeed another time
            self._cache[key] = found
            self._cached_bytes += _size(found)
            while self._cached_bytes > self._limits.cache_size and self._cache:
                _, dropped = self._cache.popitem(last=False)
                self._cached_bytes -= _size(dropped)

    def _backends(self, params: StructuredOutputsParams) -> tuple[str, ...]:
        """Return the backends to try, in order. Raises RequestError."""
        known = self._config.plugins.grammars
        name = params.backend
        if not isinstance(name, str):
            raise RequestError(f"{FIELD} has a backend that is no text; expected a name.", param=FIELD)
        self._note(name)
        named = served_backend(name)
        order = list(known)
        if named is not None:
            named = normalize(named)
            if named not in known:
                listed = ", ".join(("auto", *known))
                raise RequestError(
                    f"{FIELD} names the backend '{name}', which is not served; expected one of {listed}."
                    f"{nearest(named, known)}",
                    param=FIELD,
                )
            order.remove(named)
            order.insert(0, named)
        if not order:
            raise RequestError(f"{FIELD} cannot be served: no grammar backend is installed.", param=FIELD)
        return (order[0],) if params.disable_fallback else tuple(order)

    def _note(self, name: str) -> None:
        """Log once the meaning of another engine's backend name."""
        said = note(name) if len(self._noted) < MAX_NOTED else ""
        if said and said not in self._noted:
            self._noted.add(said)
            logger.warning("%s", said)


def _grammar_of(found: CompiledGrammar | Refusal) -> CompiledGrammar:
    """Return the grammar. Raises RequestError for a refusal."""
    if isinstance(found, Refusal):
        raise found.as_error()
    return found


def _is_small(params: StructuredOutputsParams) -> bool:
    """Whether a specification can be validated quickly. Objects, whose size is unknown, cannot."""
    is_text = not isinstance(params.json, dict) and not isinstance(params.structural_tag, dict)
    return is_text and size_of(params) <= SMALL_SPEC


def _size(found: CompiledGrammar | Refusal) -> int:
    data = found.message if isinstance(found, Refusal) else found.data
    return ENTRY_BYTES + len(data)
