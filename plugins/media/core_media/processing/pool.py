"""The processes that process media, from the server's side.

Owns: the choice of a process, what a request is told when one fails, and which cache keeps the answers. Never does: read a part
of a message, expand a prompt, or keep an item. Called by: what prepares requests; `LLM`, through `BlockingPool`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from core.api.errors import RequestError
from core_media.config import NOUNS, MediaConfig
from core_media.processing.item_names import ItemName
from core_media.processing.process import PROBE, UNAVAILABLE, Answer, Job, job_header
from core_media.processing.processed import OwnCache, Processed, ProcessedCache
from core_media.processing.shared_cache import SharedCache
from core_supervision.helpers.helper import Helper
from core_supervision.helpers.lane import Lane
from core_supervision.helpers.link import HelperEnded
from core_supervision.helpers.messages import Refusal

logger = logging.getLogger("core_media")
T = TypeVar("T")

JOB_SECONDS = 60.0
"""Seconds that one item may take."""
LANE = Lane("core_media.processing.process", "processes media", JOB_SECONDS, niceness=5, max_ended=1)


class ProcessingPool:
    """The processes of one server."""

    def __init__(self, config: MediaConfig) -> None:
        self._modality = config.modality
        first = msgspec.msgpack.encode(config)
        self._helpers = [Helper(LANE, lambda: first) for _ in range(config.num_workers)]
        self._jobs = [0] * len(self._helpers)
        self._probes: list[asyncio.Task[None]] = []
        self._unbuilt = ""
        self._cache: ProcessedCache = OwnCache(config.processor_cache_bytes)
        if config.shared_cache is not None:
            self._cache = SharedCache(config.shared_cache, config.max_shared_bytes)

    async def named(self, name: ItemName) -> Processed | None:
        """Return the processed item that a client's id stands for, if it is still kept."""
        return await self._cached(lambda: self._cache.named(name))

    async def run(
        self,
        data: bytes,
        declared: str = "",
        options: Mapping[str, Any] | None = None,
        modality: str = "",
        *,
        frames: bool = False,
        company: bool = False,
        name: ItemName | None = None,
    ) -> Processed:
        """Return a processed item, from the cache if it was there before. Raises RequestError, without a place.

        frames: see `MediaSource`. company: see `Job`. name: stands for the item from now on, as long as it is kept.
        """
        job = Job(declared, dict(options or {}), modality or self._modality, frames, company)
        noun = NOUNS[job.modality]
        # `sha256` lets go of the interpreter's lock for long data, but its caller would wait.
        key = await asyncio.to_thread(_digest, data, job)
        if name is not None:
            await self._cached(lambda: self._cache.name(name, key))
        found = await self._cached(lambda: self._cache.get(key))
        if found is not None:
            return found
        answer = await self._ask(job, data, noun)
        if answer.refusal is not None:
            self._report(answer.refusal, f"A {noun} could not be processed.")
            raise answer.refusal.as_error()
        digest = hashlib.sha256(key + answer.identity.encode()).hexdigest()
        made = Processed(digest, answer.text, answer.features, job.modality)
        await self._cached(lambda: self._cache.put(key, made))
        return made

    def start(self) -> None:
        """Start the processes ahead of the first item, in the background: importing transformers takes seconds.

        A processor that cannot be built is logged then, and refuses items; requests without any go on.
        """
        self._probes = [asyncio.ensure_future(self._probe(helper)) for helper in self._helpers]

    async def forget(self) -> None:
        """Drop what was processed and is kept for later prompts."""
        await self._cached(self._cache.clear)

    async def close(self) -> None:
        """End the processes."""
        await asyncio.gather(*(helper.close() for helper in self._helpers), *self._probes)
        self._cache.close()

    async def _cached(self, call: Callable[[], T]) -> T:
        """Return what a call of the cache returns; in a thread if it may wait."""
        return await asyncio.to_thread(call) if self._cache.waits else call()

    async def _probe(self, helper: Helper) -> None:
        try:
            answer = msgspec.msgpack.decode(await helper.ask(job_header(PROBE)), type=Answer)
        except HelperEnded as ending:  # the next item starts another process, and is told if that ends as well
            logger.debug("A process that processes media ended before it was ready (%s).", ending)
            return
        if answer.refusal is not None:
            self._report(
                answer.refusal, f"No media can be processed, requests with text alone go on: {answer.refusal.message}."
            )

    def _report(self, refusal: Refusal, sentence: str) -> None:
        """Log a refusal that is not the request's fault; one that all requests get is logged once."""
        if not refusal.details or refusal.message == self._unbuilt:
            return
        if refusal.code == UNAVAILABLE:
            self._unbuilt = refusal.message
        logger.error("%s\n%s", sentence, refusal.details)

    async def _ask(self, job: Job, data: bytes, noun: str) -> Answer:
        index = min(range(len(self._jobs)), key=self._jobs.__getitem__)
        self._jobs[index] += 1
        try:
            content = await self._helpers[index].ask(job_header(job), data)
        except HelperEnded as ending:
            raise _refusal(ending, noun) from None
        finally:
            self._jobs[index] -= 1
        return msgspec.msgpack.decode(content, type=Answer)


def _digest(data: bytes, job: Job) -> bytes:
    return hashlib.sha256(job_header(job) + hashlib.sha256(data).digest()).digest()


def _refusal(ending: HelperEnded, noun: str) -> RequestError:
    if ending.timed_out:
        return RequestError(f"the {noun} could not be processed within {JOB_SECONDS:g} s; send a smaller one")
    if ending.began and ending.exit_code:
        sentence = f"the process that processes media ended on this {noun}; send another, or try again"
    else:
        sentence = f"the process that processes media does not start ({ending}); try again"
    return RequestError(sentence, status=503, code="server_busy", retry_after=1)
