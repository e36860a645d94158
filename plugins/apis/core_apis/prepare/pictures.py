"""The pictures of a prepared request: their processing, and the tokens of its prompt with them.

Owns: when they are processed, and what must change in the request then. Never does: process them (`core_media` does). Called
by: `core_apis.prepare.preparer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.api.errors import RequestError
from core_apis.field_names import own_names
from core_apis.prepare.amounts import check_amount
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import CountedTokens, PreparedMessages, Prompt
from core_apis.protocol.anthropic_answer import TokenCount
from core_media.config import MediaConfig
from core_media.processing.prompts import MediaPrompts
from core_tokens.chat.written_text import WrittenText, plain


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

    def forget(self) -> None:
        """Drop the processed pictures that are kept for later requests."""
        self._prompts.forget()

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

    async def _complete(self, prompt: Prompt, owner: str | None, *, special: bool) -> None:
        texts = self._here.texts
        await self._run(prompt, owner, lambda text: texts.rendered_prompt(text, special, None).ids)

    async def _run(self, prompt: Prompt, owner: str | None, encode: Callable[[str], list[int]]) -> None:
        text = WrittenText(prompt.text or "", prompt.written)
        whole, prompt.token_ids, prompt.media = await self._prompts.run(text, prompt.pictures, encode, owner)
        prompt.text = plain(whole)
        prompt.pictures, prompt.written = [], ()
