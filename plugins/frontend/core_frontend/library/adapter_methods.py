"""Adapters of an engine in this process, under vLLM's names.

Owns: `AdapterMethods`, which `LLMEngine` and `LLM` have. Never does: read an adapter. Called by: users, and the methods of
these classes that take a `lora_request`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from core.api.adapters import AdapterFacts
from core.api.errors import RequestError, UtilityError
from core_frontend.adapters import LoadedAdapter, names_of
from core_frontend.library.lora_request import LoRARequest, checked, spread

if TYPE_CHECKING:
    from core.api.config import EngineConfig
    from core_frontend.library.media_prompts import MediaReader
    from core_frontend.prompts.prompt_parser import PromptInput
    from core_frontend.request_terms import RequestTerms
    from core_frontend.stepped import SteppedClient

POLL_S = 0.002


def unloaded(name: str) -> RequestError:
    """Return the refusal of a prompt whose media have an adapter that is not there any more."""
    return RequestError(
        f"The adapter '{name}' of prompts with such media (default_mm_loras) was unloaded; pass a lora_request.",
        param="lora_request",
    )


class AdapterMethods:
    """Methods of an engine whose caller drives the steps."""

    _config: EngineConfig
    _lora_ids: dict[int, str]
    _media: MediaReader

    if TYPE_CHECKING:

        def _live_client(self) -> SteppedClient: ...

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter, so that the first request that uses it does not wait. Raises RequestError."""
        return self._adapter(lora_request) is not None

    def remove_lora(self, lora_id: int) -> bool:
        """Unload an adapter; False: there is none with this number. Requests that use it run to their end."""
        name = self._lora_ids.pop(lora_id, None)
        if name is None or name not in self._adapters():
            return False
        self._call_engine("unload_adapter", name=name)
        return True

    def list_loras(self) -> set[int]:
        """Return the numbers of the adapters that were loaded with one."""
        names = self._adapters() if self._config.adapters is not None else {}
        return {number for number, name in self._lora_ids.items() if name in names}

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in memory while it is unused; False: there is none with this number."""
        if lora_id not in self.list_loras():
            return False
        self._call_engine("pin_adapter", name=self._lora_ids[lora_id])
        return True

    def _spread_adapters(self, given: Any, count: int) -> list[AdapterFacts | None]:
        """Return the adapter of each prompt. Raises RequestError."""
        found: dict[LoRARequest | None, AdapterFacts | None] = {}
        entries = [checked(each, is_served=self._config.adapters is not None) for each in spread(given, count)]
        for each in entries:
            if each not in found:
                found[each] = self._default_adapter() if each is None else self._adapter(each)
        return [found[each] for each in entries]

    def _default_adapter(self) -> AdapterFacts | None:
        config = self._config.adapters
        if config is None or not config.default:
            return None
        loaded = self._adapters().get(config.default)
        return None if loaded is None else loaded.facts

    def _with_media_adapter(self, terms: RequestTerms, prompt: PromptInput) -> RequestTerms:
        """Return the terms of a prompt whose media were read, with their adapter where the caller named none.

        Raises RequestError.
        """
        name = "" if terms.adapter is not None else self._media.adapter(prompt)
        if not name:
            return terms
        loaded = self._adapters().get(name)
        if loaded is None:
            raise unloaded(name)
        return replace(terms, adapter=loaded.facts)

    def _adapter(self, given: LoRARequest) -> AdapterFacts:
        """Return what requests need to know of an adapter, which is loaded if it is not. Raises RequestError."""
        wanted = checked(given, is_served=self._config.adapters is not None)
        if wanted is None:
            raise RequestError("lora_request is None; expected a LoRARequest.", param="lora_request")
        loaded = self._adapters().get(wanted.name)
        if wanted.lora_int_id:
            self._lora_ids[wanted.lora_int_id] = wanted.name
        if loaded is not None and not wanted.load_inplace:
            wanted.check_same(loaded.path, loaded.digest)
            return loaded.facts
        source = wanted.source()
        ticket = self._call_engine("load_adapter", name=wanted.name, replaces=wanted.load_inplace, **source)
        while (answer := self._call_engine("loaded_adapter", ticket=ticket)) is None:
            time.sleep(POLL_S)
        facts = msgspec.convert(answer, AdapterFacts)
        if wanted.shared is not None:
            wanted.shared.digest = facts.digest
        return facts

    def _adapters(self) -> dict[str, LoadedAdapter]:
        return names_of(self._call_engine("list_adapters"))

    def _call_engine(self, method: str, **arguments: Any) -> Any:
        try:
            return self._live_client().core.call(method, arguments)
        except UtilityError as error:
            raise RequestError(str(error), param="lora_request") from None
