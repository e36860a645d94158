"""The media of a prompt, from their sources to the items of a request.

Owns: the order of these steps: bytes, processing, expansion, tokens, items. Never does: one of them itself. Called by: what
prepares requests; `LLM`, through `BlockingPrompts`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from core.api.errors import RequestError
from core.api.messages import MediaItem
from core_media.config import NOUNS, MediaConfig
from core_media.families import BY_COMPANY, REWRITTEN
from core_media.processing.item_names import ItemName
from core_media.processing.pool import ProcessingPool
from core_media.processing.processed import Processed
from core_media.reading.embeds import embedded
from core_media.reading.expansion import expanded, expanded_ids, items_of
from core_media.reading.fetching import Fetcher
from core_media.reading.source import MediaSource
from core_media.spans import spans_of, why_too_long
from core_tokens.tokenizer import Tokenizer

Encode = Callable[[str], list[int]]


class MediaPrompts:
    """The prompts with media of one server. tokenizer: of its model."""

    def __init__(self, config: MediaConfig, tokenizer: Tokenizer) -> None:
        self._config = config
        self._pool = ProcessingPool(config)
        self._fetcher = Fetcher(config)
        self._row_texts = {
            name: tokenizer.backend.id_to_token(place.token_id) or "" for name, place in config.places.items()
        }
        self._by_company = config.model_type in BY_COMPANY
        self._ending = REWRITTEN.get(config.model_type, "")
        self._opening = tokenizer.special_tokens.get("bos_token", "") if self._ending else ""
        self._first = tokenizer.bos_token_id
        self._tokenizer = tokenizer

    async def run(
        self, text: str, sources: Sequence[MediaSource], encode: Encode, owner: str | None = ""
    ) -> tuple[str, list[int], list[MediaItem]]:
        """Return a prompt's text and token ids with its media, and its items. Raises RequestError.

        encode: tokenizes the whole text; called in a thread. owner: tenant whose ids of items count; None: no ids are taken.
        """
        processed, param = await self._all(sources, owner), sources[0].param
        whole, order = expanded(text, self._config, processed, param, opening=self._opening, ending=self._ending)
        token_ids = await asyncio.to_thread(encode, whole)
        if self._opening and token_ids[0] == self._first and not whole.startswith(self._opening):
            token_ids = token_ids[1:]  # The text has its first token behind the last picture.
        return whole, token_ids, self._items(token_ids, order, param)

    async def run_ids(
        self, token_ids: Sequence[int], sources: Sequence[MediaSource]
    ) -> tuple[list[int], list[MediaItem]]:
        """Do the same for a prompt of token ids, in which one token stands for each item. Raises RequestError."""
        processed, param = await self._all(sources, ""), sources[0].param
        ids, order = expanded_ids(
            token_ids, self._marks(), processed, self._encoded, param, opening=self._opening, ending=self._ending
        )
        return ids, self._items(ids, order, param)

    def _marks(self) -> dict[int, str]:
        """Return the tokens of placeholders, with their modality."""
        marks = {name: self._encoded(place.placeholder) for name, place in self._config.places.items()}
        return {ids[0]: name for name, ids in marks.items() if len(ids) == 1}

    def _encoded(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _items(self, token_ids: list[int], order: Sequence[Processed], param: str) -> list[MediaItem]:
        """Return the items of a prompt. Raises RequestError."""
        items = items_of(token_ids, self._config, self._row_texts, order, param)
        refusal = why_too_long(spans_of(token_ids, items, self._config), self._config)
        if refusal:
            raise RequestError(refusal, param=param)
        return items

    async def _all(self, sources: Sequence[MediaSource], owner: str | None) -> list[Processed]:
        company = self._by_company and len(sources) > 1
        made: dict[int, Processed] = {}
        for alone in (False, True):  # an id may stand for another item of the same prompt
            chosen = {index: source for index, source in enumerate(sources) if source.is_name_alone == alone}
            found = await asyncio.gather(*(self._processed(source, company, owner) for source in chosen.values()))
            made.update(zip(chosen, found, strict=True))
        return [made[index] for index in range(len(sources))]

    def start(self) -> None:
        """Start the processes ahead of the first item."""
        self._pool.start()

    async def forget(self) -> None:
        """Drop the processed pictures that are kept for later prompts."""
        await self._pool.forget()

    async def close(self) -> None:
        """End the processes."""
        await self._pool.close()

    async def _processed(self, source: MediaSource, company: bool, owner: str | None) -> Processed:
        try:
            name = _name_of(source, company, owner)
            found = None if name is None else await self._pool.named(name)
            if found is not None:
                return found
            if source.is_name_alone:
                raise _unknown(source)
            if source.embeds is not None:
                row_text = self._row_texts[source.modality]
                return await asyncio.to_thread(embedded, source.embeds, source.modality, row_text, self._config)
            data, declared = source.data, source.declared
            if source.url:
                data, declared = await asyncio.to_thread(self._fetcher.fetch, source.url)
            return await self._pool.run(
                data, declared, source.options, source.modality, frames=source.frames, company=company, name=name
            )
        except RequestError as error:
            raise source.error(error) from None


class BlockingPrompts:
    """The same for a caller that blocks, with an event loop in a thread of its own. `close` ends both."""

    def __init__(self, config: MediaConfig, tokenizer: Tokenizer) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="media", daemon=True)
        self._thread.start()
        self._prompts = asyncio.run_coroutine_threadsafe(_made(config, tokenizer), self._loop).result()

    def run(self, text: str, sources: Sequence[MediaSource], encode: Encode) -> tuple[str, list[int], list[MediaItem]]:
        """Do what `MediaPrompts.run` does. Raises RequestError."""
        return asyncio.run_coroutine_threadsafe(self._prompts.run(text, sources, encode), self._loop).result()

    def run_ids(self, token_ids: Sequence[int], sources: Sequence[MediaSource]) -> tuple[list[int], list[MediaItem]]:
        """Do what `MediaPrompts.run_ids` does. Raises RequestError."""
        return asyncio.run_coroutine_threadsafe(self._prompts.run_ids(token_ids, sources), self._loop).result()

    def close(self) -> None:
        """End the processes and the thread."""
        asyncio.run_coroutine_threadsafe(self._prompts.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _name_of(source: MediaSource, company: bool, owner: str | None) -> ItemName | None:
    """Return what an item's id stands for; None: it has none. Raises RequestError where no ids are taken."""
    if not source.uuid:
        return None
    if owner is None:
        raise RequestError("uuid is not taken here; leave it out, and send the item itself")
    return ItemName(owner, source.uuid, source.modality, source.options, company)


def _unknown(source: MediaSource) -> RequestError:
    """Return the refusal of an id that stands for nothing."""
    noun = NOUNS[source.modality]
    return RequestError(
        f"no {noun} with the id {source.uuid[:80]!r} and these options is kept (--mm-processor-cache-gb); send the {noun} "
        "itself with its id"
    )


async def _made(config: MediaConfig, tokenizer: Tokenizer) -> MediaPrompts:
    return MediaPrompts(config, tokenizer)
