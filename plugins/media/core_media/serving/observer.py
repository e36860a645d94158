"""The gate for requests whose media a tower computes.

Owns: `MediaObserver`: the thread of the tower, the sequences that wait for it, and the rows that they get. Never does: decide
which sequence is computed. Called by: the engine core, between steps.

A sequence waits for its rows, but no step does.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, runtime_checkable

import msgspec
import numpy as np

from core.api.errors import UserError
from core.api.messages import EngineRequest, MediaItem
from core.api.sampling_params import SamplingParams
from core.api.step_plan import SequenceKey
from core.engine.observer import Engine, EngineStart
from core_media.config import NOUNS, VIDEO, MediaConfig, media_of
from core_media.pruning import pruned
from core_media.serving.row_cache import Computed, RowCache, RowKey
from core_media.sound.rules import asked_times, with_times
from core_media.spans import spans_of, why_too_long
from core_supervision.waiting_gate import WaitingGate

if TYPE_CHECKING:
    from core_media.serving.encoder import Encoder
    from core_media.serving.tower import Tower
    from core_media.serving.tower_adapters import LinearChange, TowerAdapters
    from core_runtime.executor.adapters.towers import AdaptedTower

logger = logging.getLogger(__name__)

BEHIND_ADAPTERS: Final = 36
"""Order of the gate where adapters change the tower: an adapter is in memory when its items are computed."""
MOST_COMPLETE: Final = 1 << 16
"""Sequences that are known to have their rows while they wait for their adapter again; others are computed once more."""


@runtime_checkable
class TowerAdaptingExecutor(Protocol):
    """An executor that reads adapters in this process."""

    def adapt_tower(self, tower: AdaptedTower) -> None:
        """Have a tower keep what adapters change of it."""
        ...


class UnfitMedia(Exception):
    """Items that do not fit their prompt; the sentence says why."""


class Made(NamedTuple):
    """What the tower made of a request: its items, and the parameters with which it goes on."""

    media: list[MediaItem]
    params: SamplingParams


class MediaObserver(WaitingGate):
    """The gate of one engine."""

    order = 32  # before the gate of adapters, which must be the last

    _tower: Tower | Encoder

    def __init__(self, media: MediaConfig) -> None:
        super().__init__()
        if media.adapts_tower:
            self.order = BEHIND_ADAPTERS
        self._adapters: TowerAdapters | None = None
        self._complete: OrderedDict[SequenceKey, None] = OrderedDict()
        self._media = media
        self._made: dict[SequenceKey, Future[Made]] = {}
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
        if self._media.adapts_tower:
            if not isinstance(engine.executor, TowerAdaptingExecutor):
                raise UserError("--enable-tower-connector-lora: this executor reads adapters elsewhere; leave it out.")
            assert engine.config.adapters is not None, "the configuration says that adapters change the tower"
            self._adapters = self._tower.adapters(engine.config.adapters)
            engine.executor.adapt_tower(self._adapters)

    def before_step(self) -> None:
        """Schedule the sequences whose rows are there, and end those whose tower failed."""
        if not self.held:
            return
        now = time.monotonic()
        held, self.held = self.held, []
        for request in held:
            made = self._made[request.key]
            # The scheduler ends a sequence whose deadline has passed.
            is_late = bool(request.deadline) and request.deadline <= now
            if not made.done() and not is_late:
                self.held.append(request)
                continue
            del self._made[request.key]
            if made.done() and (error := made.exception()) is not None:
                self.refuse(request, self._sentence(request, error))
                continue
            media, params = ([_light(item) for item in request.media], request.params) if is_late else made.result()
            spans = spans_of(request.prompt_token_ids, media, self._media)
            whole = msgspec.structs.replace(request, media=media, spans=spans, params=params)
            if self._adapters is None or not request.adapter:
                self._engine.sequences.add([whole], after=self)
                continue
            # Its adapter may have left memory meanwhile, so it passes that gate again, and then this one.
            self._complete[whole.key] = None
            while len(self._complete) > MOST_COMPLETE:
                self._complete.popitem(last=False)
            self._engine.sequences.add([whole])

    def hold(self, request: EngineRequest) -> bool:
        """Keep a sequence with media until their rows are computed."""
        if not request.media:
            return False
        if request.key in self._complete:
            del self._complete[request.key]
            if not any(item.features for item in request.media):
                return False
        changes = () if self._adapters is None else self._adapters.find(request.adapter)
        self._made[request.key] = self._thread.submit(self._compute, request, changes)
        self.held.append(request)
        return True

    def utilities(self, client: int) -> dict[str, Callable[..., Any]]:
        """Return the utility that drops the rows kept for later prompts."""

        def reset_encoder_cache() -> None:
            self._thread.submit(self._rows.clear)  # the thread of the tower is the only user of the rows

        return {"reset_encoder_cache": reset_encoder_cache}

    def awaited(self) -> Collection[Future[Made]]:
        """Return the items whose rows are being computed, by sequence."""
        return self._made.values()

    def drop(self, requests: Collection[EngineRequest]) -> None:
        """Keep these sequences no longer, and do not begin with their items."""
        for request in requests:
            self._made.pop(request.key).cancel()
        super().drop(requests)

    def close(self) -> None:
        """Wait for the item that is being computed; do not start others."""
        self._thread.shutdown(cancel_futures=True)

    def _sentence(self, request: EngineRequest, error: BaseException) -> str:
        """Return why a sequence ends whose items have no rows."""
        if isinstance(error, UnfitMedia):
            return str(error)
        logger.error("The tower failed on request %r.", request.request_id, exc_info=error)
        return (
            f"The tower failed on a {self._noun(request.media[0])} of this request ({type(error).__name__}: {error})."
        )

    def _compute(self, request: EngineRequest, changes: Sequence[LinearChange] = ()) -> Made:
        """Return the request's items with their rows, and its parameters; runs in the thread. Raises UnfitMedia.

        changes: of the request's adapter in the tower.
        """
        from core_runtime.executor.steps.input_embeddings import positions_of

        _check_places(request)
        refusal = why_too_long(spans_of(request.prompt_token_ids, request.media, self._media), self._media)
        if refusal:
            raise UnfitMedia(refusal)
        token_ids = np.asarray(request.prompt_token_ids)
        made: list[MediaItem] = []
        params = request.params
        for item in request.media:
            rows, grid = Computed(item.rows, item.grid) if item.rows else self._computed(request, item, changes)
            sound = self._media.sound
            # The rows of a sound to transcribe are what tokens attend to; those of other items stand for tokens.
            places = range(sound.rows) if sound is not None else positions_of(item, token_ids)
            expected = len(places)
            if not expected or len(rows) != expected * self._tower.row_bytes:
                raise UnfitMedia(
                    f"A {self._noun(item)} has {len(rows) // self._tower.row_bytes} rows where {expected} belong to the prompt."
                )
            rules = None if sound is None else asked_times(request.params)
            if rules is not None:
                steps = self._tower.times(rows, request.prompt_token_ids, rules.spoken, rules.frames)
                params = with_times(params, rules, steps)
            whole = msgspec.structs.replace(item, features=b"", rows=rows, levels=self._tower.levels, grid=grid)
            made += divided(whole, list(places)) if grid else [whole]
            made += self._closing(item, request.prompt_token_ids, changes)
        return Made(made, params)

    def _computed(self, request: EngineRequest, item: MediaItem, changes: Sequence[LinearChange]) -> Computed:
        """Return the rows of an item, from the cache if they were there before; without those that are left out."""
        key = RowKey(request.tenant, item.digest, request.adapter if changes else "")
        found = self._rows.get(key)
        if found is None:
            found = Computed(self._tower.rows(item.features, changes), self._tower.grid(item.features))
            if self._media.pruning and self._modality(item) == VIDEO:
                found = Computed(*pruned(*found, self._media.pruning))
            self._rows.put(key, found)
        return found

    def _closing(self, item: MediaItem, token_ids: Sequence[int], changes: Sequence[LinearChange]) -> list[MediaItem]:
        """Return the token behind an item as another one, where the tower embeds it."""
        modality = self._modality(item)
        place = self._media.places.get(modality)
        if place is None or place.closing is None or token_ids[item.stop : item.stop + 1] != [place.closing]:
            return []
        row = self._tower.embedded(modality, place.closing, changes)
        return [MediaItem(item.stop, item.stop + 1, f"{item.digest}.closing", place.closing, b"", row)]

    def _modality(self, item: MediaItem) -> str:
        places = self._media.places.items()
        return next((name for name, place in places if place.token_id == item.token_id), self._media.modality)

    def _noun(self, item: MediaItem) -> str:
        """Return what an item is called in sentences."""
        return NOUNS[self._modality(item)]


def divided(item: MediaItem, places: Sequence[int]) -> list[MediaItem]:
    """Return an item with three positions a row, or the frames of a video with text between them. Raises UnfitMedia.

    places: of its rows in the prompt.
    """
    time, height, width = item.grid[:3]
    if len(item.grid) > 3 + time:  # a video without the rows that are left out
        return [item]
    if time * height * width != len(places):
        raise UnfitMedia(f"An item of {time} × {height} × {width} rows has {len(places)} placeholders in the prompt.")
    if len(places) == item.stop - item.start:
        return [item]
    count = height * width
    size = len(item.rows) // time
    made: list[MediaItem] = []
    for index in range(time):
        start, stop = int(places[index * count]), int(places[(index + 1) * count - 1]) + 1
        if stop - start != count:
            raise UnfitMedia(f"Frame {index} of a video has {count} rows at {stop - start} positions of the prompt.")
        rows = item.rows[index * size : (index + 1) * size]
        frame = MediaItem(
            start, stop, f"{item.digest}.{index}", item.token_id, b"", rows, item.levels, [1, height, width]
        )
        made.append(frame)
    return made


def _light(item: MediaItem) -> MediaItem:
    """Return an item without its numbers, for a request that ends before they are needed."""
    return msgspec.structs.replace(item, features=b"", rows=b"")


def _check_places(request: EngineRequest) -> None:
    """Raise UnfitMedia for items whose places are not in order, or not in the prompt."""
    end = 0
    for item in request.media:
        if not end <= item.start < item.stop <= len(request.prompt_token_ids):
            raise UnfitMedia(f"An item is said to lie at the positions {item.start} to {item.stop} of the prompt.")
        end = item.stop
