"""The methods for adapters of an engine in a process of its own, with the names of vLLM.

Owns: `AsyncAdapterMethods`, the numbers by which a script knows its adapters. Never does: read a file (the engine does).
Called by: `AsyncLLM`, which takes a `lora_request` with each request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.api.adapters import AdapterFacts
from core_frontend.library.adapter_methods import unloaded
from core_frontend.library.lora_request import LoRARequest, checked

if TYPE_CHECKING:
    from core_frontend.async_engine import AsyncEngine
    from core_frontend.library.media_prompts import MediaReader
    from core_frontend.prompts.prompt_parser import PromptInput


class AsyncAdapterMethods:
    """Methods of an engine that runs by itself."""

    _lora_ids: dict[int, str]
    _media: MediaReader | None

    if TYPE_CHECKING:

        async def _running(self) -> AsyncEngine:
            """Return the engine, which is started if it is not running."""

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter, so that the first request that uses it does not wait. Raises RequestError."""
        return await self._adapter(await self._running(), lora_request) is not None

    async def remove_lora(self, lora_id: int) -> bool:
        """Unload an adapter; False: there is none with this number. Requests that use it run to their end."""
        name = self._lora_ids.pop(lora_id, None)
        adapters = (await self._running()).adapters
        if name is None or await adapters.find(name) is None:
            return False
        await adapters.unload(name)
        return True

    async def list_loras(self) -> set[int]:
        """Return the numbers of the adapters that were loaded with one."""
        engine = await self._running()
        names = [] if engine.config.adapters is None else [row.name for row in await engine.adapters.rows()]
        return {number for number, name in self._lora_ids.items() if name in names}

    async def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in memory while it is unused; False: there is none with this number."""
        if lora_id not in await self.list_loras():
            return False
        await (await self._running()).adapters.pin(self._lora_ids[lora_id])
        return True

    async def _adapter(
        self, engine: AsyncEngine, given: LoRARequest | None, prompt: PromptInput = ""
    ) -> AdapterFacts | None:
        """Return what a request needs to know of its adapter, which is loaded if it is not. Raises RequestError.

        prompt: whose media were read; they may have an adapter of their own.
        """
        config = engine.config.adapters
        wanted = checked(given, is_served=config is not None)
        if wanted is None:
            of_media = "" if self._media is None else self._media.adapter(prompt)
            name = of_media or ("" if config is None else config.default)
            found = await engine.adapters.find(name) if name else None
            if found is None and of_media:
                raise unloaded(of_media)
            return None if found is None else found.facts
        loaded = await engine.adapters.find(wanted.name)
        if wanted.lora_int_id:
            self._lora_ids[wanted.lora_int_id] = wanted.name
        if loaded is None or wanted.load_inplace:
            loaded = await engine.adapters.load(wanted.name, replaces=wanted.load_inplace, **wanted.source())
            if wanted.shared is not None:
                wanted.shared.digest = loaded.digest
        wanted.check_same(loaded.path, loaded.digest)
        return loaded.facts
