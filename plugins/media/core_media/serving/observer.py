"""The gate for requests whose pictures a tower computes.

Owns: `MediaObserver`: the thread of the tower, the sequences that wait for it, and the rows that they get. Never does: decide
which sequence is computed. Called by: the engine core, between steps.

A sequence waits for its rows, but no step does.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np

from core.api.messages import EngineRequest, MediaItem
from core.api.stats import SchedulerStats
from core.api.step_plan import SequenceKey
from core.engine.gate import Gate
from core.engine.observer import Engine, EngineObserver, EngineStart
from core_media.config import MediaConfig, media_of
from core_media.serving.row_cache import RowCache, RowKey
from core_media.spans import spans_of, why_too_long

if TYPE_CHECKING:
    from core_media.serving.encoder import Encoder
    from core_media.serving.tower import Tower

logger = logging.getLogger(__name__)


class UnfitMedia(Exception):
    """Items that do not fit their prompt; the sentence says why."""


@dataclass(slots=True)
class Waiting:
    """A waiting sequence. made: its items with their rows, once they are computed."""

    request: EngineRequest
    made: Future[list[MediaItem]]


class MediaObserver(EngineObserver, Gate):
    """The gate of one engine."""

    order = 32  # before the gate of adapters, which must be the last

    _engine: Engine
    _tower: Tower | Encoder

    def __init__(self, media: MediaConfig) -> None:
        self.gate = self
        self._media = media
        self._held: list[Waiting] = []
        self._rows = RowCache(media.row_cache_bytes)
        self._thread = ThreadPoolExecutor(1, "tower")

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Make the gate; None for an engine whose prompts carry text."""
        media = media_of(start.config)
        return None if media is None else cls(media)

    def attach(self, engine: Engine) -> None:
        """Read the tower. Raises UserError."""
        # They import torch, which an engine without media may do without.
        from core_media.serving.encoder import Encoder
        from core_media.serving.tower import Tower

        self._engine = engine
        sound = self._media.sound
        self._tower = Tower(engine.config, self._media) if sound is None else Encoder(engine.config, sound)

    def before_step(self) -> None:
        """Schedule the sequences whose rows are there, and end those whose tower failed."""
        if not self._held:
            return
        now = time.monotonic()
        kept: list[Waiting] = []
        for held in self._held:
            # The scheduler ends a sequence whose deadline has passed.
            is_late = bool(held.request.deadline) and held.request.deadline <= now
            if not held.made.done() and not is_late:
                kept.append(held)
                continue
            if held.made.done() and held.made.exception() is not None:
                self._refuse(held)
                continue
            media = [_light(item) for item in held.request.media] if is_late else held.made.result()
            spans = spans_of(held.request.prompt_token_ids, media, self._media)
            request = msgspec.structs.replace(held.request, media=media, spans=spans)
            self._engine.sequences.add([request], after=self)
        self._held = kept

    def report(self, stats: SchedulerStats) -> None:
        """Add the waiting sequences to the statistics."""
        stats.num_waiting += len(self._held)
        stats.num_deferred += len(self._held)

    @property
    def num_live(self) -> int:
        """Number of waiting sequences."""
        return len(self._held)

    def hold(self, request: EngineRequest) -> bool:
        """Keep a sequence with media until their rows are computed."""
        if not request.media:
            return False
        made = self._thread.submit(self._compute, request)
        self._held.append(Waiting(request, made))
        return True

    def await_one(self, seconds: float) -> None:
        """Wait until some sequence may continue, at most `seconds`."""
        if self._held:
            wait([held.made for held in self._held], timeout=seconds, return_when="FIRST_COMPLETED")

    def take_live(self) -> list[EngineRequest]:
        """Return all waiting sequences and keep none of them."""
        taken = [held.request for held in self._held]
        self._drop(self._held)
        return taken

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop all choices of these requests; unknown ids are ignored."""
        named = set(request_ids)
        self._drop([held for held in self._held if held.request.request_id in named])

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Drop single choices; unknown ones are ignored."""
        named = set(keys)
        self._drop([held for held in self._held if held.request.key in named])

    def close(self) -> None:
        """Wait for the item that is being computed; do not start others."""
        self._thread.shutdown(cancel_futures=True)

    def _drop(self, dropped: list[Waiting]) -> None:
        for held in dropped:
            held.made.cancel()
        self._held = [held for held in self._held if held not in dropped]

    def _refuse(self, held: Waiting) -> None:
        request, error = held.request, held.made.exception()
        if isinstance(error, UnfitMedia):
            reason = str(error)
        else:
            logger.error("The tower failed on request %r.", request.request_id, exc_info=error)
            reason = f"The tower failed on a {self._media.noun} of this request ({type(error).__name__}: {error})."
        self._engine.sequences.refuse(request.request_id, request.choice, request.handle, reason)

    def _compute(self, request: EngineRequest) -> list[MediaItem]:
        """Return the request's items with their rows; runs in the thread. Raises UnfitMedia."""
        from core_runtime.executor.steps.input_embeddings import positions_of

        _check_places(request)
        refusal = why_too_long(spans_of(request.prompt_token_ids, request.media, self._media), self._media)
        if refusal:
            raise UnfitMedia(refusal)
        token_ids = np.asarray(request.prompt_token_ids)
        made: list[MediaItem] = []
        for item in request.media:
            key = RowKey(request.tenant, item.digest)
            rows = self._rows.get(key)
            if rows is None:
                rows = self._tower.rows(item.features)
                self._rows.put(key, rows)
            sound = self._media.sound
            # A sound's rows are what tokens attend to; a picture's stand for tokens.
            expected = len(positions_of(item, token_ids)) if sound is None else sound.rows
            if not expected or len(rows) != expected * self._tower.row_bytes:
                raise UnfitMedia(
                    f"A {self._media.noun} has {len(rows) // self._tower.row_bytes} rows where {expected} belong to the prompt."
                )
            grid = self._tower.grid(item.features)
            if grid and not math.prod(grid) == expected == item.stop - item.start:
                raise UnfitMedia(
                    f"A picture of {' × '.join(map(str, grid))} rows has {expected} placeholders in the prompt."
                )
            levels = self._tower.levels
            made.append(msgspec.structs.replace(item, features=b"", rows=rows, levels=levels, grid=grid))
        return made


def _light(item: MediaItem) -> MediaItem:
    """Return an item without its numbers, for a request that ends before they are needed."""
    return msgspec.structs.replace(item, features=b"", rows=b"")


def _check_places(request: EngineRequest) -> None:
    """Raise UnfitMedia for items whose places are not in order, or not in the prompt."""
    end = 0
    for item in request.media:
        if not end <= item.start < item.stop <= len(request.prompt_token_ids):
            raise UnfitMedia(f"A picture is said to lie at the positions {item.start} to {item.stop} of the prompt.")
        end = item.stop
