"""The pictures of a prepared request: their processing, and the tokens of its prompt with them.

Owns: when they are processed, and what must change in the request then. Never does: process them (`core_media` does). Called
by: `core_apis.prepare.preparer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from core.api.errors import RequestError
from core_apis.field_names import own_names
from core_apis.prepare.amounts import check_amount, check_numbers
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import CountedTokens, PreparedMessages, PreparedPooling, Prompt
from core_apis.protocol.anthropic_answer import TokenCount
from core_frontend.prompts.pooling_input import NO_TOKENS, check_whole, resolved
from core_media.config import MediaConfig
from core_media.processing.prompts import MediaPrompts
from core_tokens.chat.written_text import WrittenText, plain

AT_ONCE: Final = 8
"""Texts of one request whose pictures are processed at the same time."""
MOST_FEATURE_BYTES: Final = 1 << 30
"""Limit on the processed pictures of one request with many texts; a picture of Gemma 3 has 9.6 MB."""


class PicturePreparation:
    """The pictures of one server. here: encodes texts."""

    def __init__(self, config: MediaConfig, here: Preparation) -> None:
        self._prompts = MediaPrompts(config, here.tokenizer)
        self._here = here

    def warm(self) -> None:
        """Start the processes, so that the first picture does not wait for them."""
        self._prompts.start()

    async def complete(self, prepared: Any, owner: str | None) -> None:
        """Process the pictures of a request, in place. Raises RequestError. owner: see `MediaPrompts.run`."""
        if isinstance(prepared, CountedTokens):
            await self._count(prepared, owner)
            return
        if isinstance(prepared, PreparedPooling):
            await self._pool(prepared, owner)
            return
        runs = getattr(prepared, "chat", prepared)
        for prompt in getattr(runs, "prompts", ()):
            if not prompt.pictures:
                continue
            if runs.body.truncate_prompt_tokens is not None:
                raise RequestError(
                    "truncate_prompt_tokens cuts a prompt, and this one has pictures; leave it out.",
                    param="truncate_prompt_tokens",
                )
            with own_names(runs.names):
                await self._complete(prompt, owner, special=bool(runs.body.add_special_tokens))
            check_amount(self._here.settings, runs.params, [len(prompt.token_ids)])
            if isinstance(prepared, PreparedMessages):
                room = self._here.settings.max_model_len - len(prompt.token_ids)
                runs.params.max_tokens = min(prepared.max_tokens, room)

    async def forget(self) -> None:
        """Drop the processed pictures that are kept for later requests."""
        await self._prompts.forget()

    async def close(self) -> None:
        """End the processes."""
        await self._prompts.close()

    async def _count(self, counted: CountedTokens, owner: str | None) -> None:
        """Count the tokens of a prompt with pictures. Those of the request that follows are processed by then."""
        prompt = counted.prompt
        if prompt is None:
            return
        texts, special = self._here.texts, counted.special
        await self._run(prompt, owner, lambda text: texts.rendered(text, special).ids)
        counted.count = TokenCount(len(prompt.token_ids))
        counted.prompt = None

    async def _pool(self, prepared: PreparedPooling[Any], owner: str | None) -> None:
        """Process the pictures of texts to pool."""
        settings = self._here.settings
        shown = [prompt for prompt in prepared.prompts if prompt.pictures]
        num_bytes = 0
        with own_names(prepared.names):
            for start in range(0, len(shown), AT_ONCE):
                group = shown[start : start + AT_ONCE]
                await asyncio.gather(*(self._complete(prompt, owner, special=prompt.special) for prompt in group))
                num_bytes += sum(len(item.features) for prompt in group for item in prompt.media)
                if num_bytes > MOST_FEATURE_BYTES:
                    raise RequestError(
                        f"The first {start + len(group)} entries with pictures have {num_bytes >> 20} MiB once processed; at "
                        f"most {MOST_FEATURE_BYTES >> 20} MiB fit one request. Send fewer pictures at once.",
                        param="prompt",
                        status=413,
                        code="too_large",
                    )
            if shown:
                lens = [len(prompt.token_ids) for prompt in prepared.prompts]
                check_amount(settings, NO_TOKENS, lens)
                for prompt in shown:
                    check_whole(len(prompt.token_ids), prepared.params, settings.max_model_len)
                if settings.pooling is not None:
                    check_numbers(settings, resolved(prepared.params, settings.pooling), lens)

    async def _complete(self, prompt: Prompt, owner: str | None, *, special: bool) -> None:
        texts = self._here.texts
        if self._here.settings.pooling is not None:  # how long it may be depends on `check_whole`
            await self._run(prompt, owner, lambda text: texts.rendered(text, special).ids)
            return
        await self._run(prompt, owner, lambda text: texts.rendered_prompt(text, special, None).ids)

    async def _run(self, prompt: Prompt, owner: str | None, encode: Callable[[str], list[int]]) -> None:
        text = WrittenText(prompt.text or "", prompt.written)
        whole, prompt.token_ids, prompt.media = await self._prompts.run(text, prompt.pictures, encode, owner)
        prompt.text = plain(whole)
        prompt.pictures, prompt.written = [], ()
