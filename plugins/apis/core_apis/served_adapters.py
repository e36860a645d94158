"""The adapters that a server answers for, each as a model of its own.

Owns: `ServedAdapters`: the adapter of a name, the search for names that are unknown, and which paths a
request may have loaded. Never does: read an adapter (the engine does), or know a route. Called by: the preparation of
requests, and the routes.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from core.api.adapters import AdapterFacts, AdaptersConfig
from core.api.config import ResolvedPlugin
from core.api.errors import UNREADABLE, RequestError, nearest
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable
from core_apis.errors import GenerationError
from core_apis.served_names import ServedNames
from core_config.served.server_config import AdapterSettings
from core_frontend.adapters import Adapters, LoadedAdapter
from core_frontend.api.outputs import RequestOutput

if TYPE_CHECKING:
    from core_adapters.resolvers import Resolver
    from core_apis.watching import Generate, PromptCall

logger = logging.getLogger("core_apis")

LONGEST_NAME = 256
MOST_SEARCHES = 4
"""Searches for names at a time: each may wait for the network, in a thread."""


MOST_TEMPLATES = 4096
"""Adapters whose chat template is remembered."""
LONGEST_TEMPLATE = 1 << 20


class TokenizerConfig(msgspec.Struct):
    """The part of `tokenizer_config.json` that is read of an adapter."""

    chat_template: Any = None


class ServedAdapters:
    """The adapters of one server.

    engine: those that the engine knows.
    names:  the names of the base model.
    of_media: the names of adapters that prompts with media have, where requests name the base model.

    max_loras: how many a step may have.
    """

    def __init__(
        self,
        config: AdaptersConfig,
        settings: AdapterSettings | None,
        engine: Adapters,
        names: ServedNames,
        of_media: Collection[str] = (),
    ) -> None:
        self.engine = engine
        self.settings = settings or AdapterSettings()
        self.max_loras = config.max_loras
        self._default = config.default
        self._of_media = tuple(of_media)
        self._waiting: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._names = names
        self._resolvers = _load(self.settings.resolvers, self.settings.directory)
        self._searches: dict[str, asyncio.Task[LoadedAdapter]] = {}
        self._templates: dict[str, str | None] = {}
        self._turns = asyncio.Semaphore(MOST_SEARCHES)

    async def check_model(self, name: str | None) -> str | None:
        """Check that the model of a request is served, and have its adapter loaded. Raises RequestError (404).

        name: the model; None: the body names none.
        Returns the adapter's own chat template; None: it has none.
        """
        if name is not None:
            await self.check(name)
        elif self._default or self._of_media:
            await self.engine.refresh()
        adapter = self.engine.known(name or self._default)
        return None if adapter is None else await self._template(adapter)

    async def check(self, name: str) -> None:
        """Check that a model is served, and have its adapter loaded. Raises RequestError (404)."""
        if name in self._names.now():
            if self._default or self._of_media:
                await self.engine.refresh()
        elif await self.engine.find(name) is None:
            await self._search(name)

    def facts(self, model: str, own: str = "") -> AdapterFacts | None:
        """Return what a request for a model that was checked needs to know; None: it uses the base model.

        own: name of the adapter of its media, which counts where it names the base model; empty: they have none.
        Raises RequestError (404) for an adapter that was unloaded since it was checked.
        """
        is_base = model in self._names.now()
        name = (own or self._default) if is_base else model
        if not name:
            return None
        found = self.engine.known(name)
        if found is None and is_base and own:
            raise RequestError(
                f"The adapter '{own}' of prompts with such media (--default-mm-loras) was unloaded; name another model.",
                param="model",
                status=404,
                code="model_not_found",
            )
        if found is None:
            raise self._unknown(model)
        return found.facts

    def path(self, given: str) -> str:
        """Return the path that a request may have loaded. Raises RequestError (403) for one outside of --lora-directory."""
        from core_adapters.resolvers.directory import below

        directory = self.settings.directory
        found = None if directory is None else below(directory, given)
        if found is None:
            raise RequestError(
                f"lora_path is {given[:LONGEST_NAME]!r}; expected a path below --lora-directory.",
                param="lora_path",
                status=403,
            )
        if not os.path.exists(found):  # unlike a `Path`, without an error for a name that is too long
            raise RequestError(
                f"lora_path is {given[:LONGEST_NAME]!r}; there is no such file or directory.",
                param="lora_path",
                status=404,
            )
        return found

    def in_use(self) -> tuple[list[str], list[str]]:
        """Return the names of adapters whose requests have output, and of those whose requests still wait for it."""
        names = {row.digest: row.name for row in map(self.engine.known, self.engine.names) if row is not None}
        shown = [sorted(names.get(digest, digest[:12]) for digest in +uses) for uses in (self._running, self._waiting)]
        return shown[0], shown[1]

    def followed(self, generate: Generate) -> Generate:
        """Wrap `generate` to follow which adapters are in use."""

        async def run(call: PromptCall) -> AsyncGenerator[RequestOutput, None]:
            adapter = call.terms.adapter
            uses = self._waiting
            uses.update([adapter.digest] if adapter else [])
            try:
                async with aclosing(generate(call)) as outputs:
                    async for output in outputs:
                        if adapter and uses is self._waiting:
                            uses.subtract([adapter.digest])
                            uses = self._running
                            uses.update([adapter.digest])
                        yield output
            except GenerationError:
                if adapter and uses is self._waiting and not await self._is_loaded(adapter.digest):
                    raise RequestError(
                        "The adapter was unloaded or replaced before this request began; ask again.",
                        param="model",
                        status=409,
                    ) from None
                raise
            finally:
                uses.subtract([adapter.digest] if adapter else [])
                if adapter and not uses[adapter.digest]:
                    del uses[adapter.digest]

        return run

    async def _is_loaded(self, digest: str) -> bool:
        return any(row.digest == digest for row in await self.engine.refresh())

    async def _template(self, adapter: LoadedAdapter) -> str | None:
        """Return the chat template among an adapter's files, which is read once."""
        if adapter.digest not in self._templates:
            if len(self._templates) > MOST_TEMPLATES:
                self._templates.clear()
            self._templates[adapter.digest] = await asyncio.to_thread(own_template, adapter.path)
        return self._templates[adapter.digest]

    async def _search(self, name: str) -> None:
        """Have resolvers find an adapter, and load it. Requests for one name share the search. Raises RequestError."""
        if not self._resolvers or len(name) > LONGEST_NAME:
            raise self._unknown(name)
        task = self._searches.get(name)
        if task is None:
            task = self._searches[name] = asyncio.create_task(self._found(name))
            task.add_done_callback(lambda done: self._searches.pop(name, None))
        await asyncio.shield(task)

    async def _found(self, name: str) -> LoadedAdapter:
        async with self._turns:
            for label, resolver in self._resolvers:
                try:
                    async with asyncio.timeout(self.settings.timeout_s):
                        path = await asyncio.to_thread(resolver.find, name)
                except TimeoutError:
                    logger.warning(
                        "The resolver '%s' found no adapter '%s' in time (--lora-resolver-timeout).", label, name
                    )
                except Exception as error:
                    logger.error("The resolver '%s' failed.", label, exc_info=error)
                else:
                    if path is not None:
                        return await self.engine.load(name, path, replaces=True)
        raise self._unknown(name)

    def _unknown(self, name: str) -> RequestError:
        names = [*self._names.now(), *self.engine.names]
        served = ", ".join(f"'{served}'" for served in names[:20])
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        return RequestError(
            f"The model '{name[:LONGEST_NAME]}' does not exist; this server serves {served}{more}.{nearest(name, names)}",
            param="model",
            status=404,
            code="model_not_found",
        )


def own_template(path: str) -> str | None:
    """Return the chat template in an adapter's directory; None: it has none that can be read."""
    try:
        written = Path(path, "chat_template.jinja")
        if written.is_file():
            return written.read_text(encoding="utf-8")[:LONGEST_TEMPLATE]
        found = msgspec.json.decode(Path(path, "tokenizer_config.json").read_bytes(), type=TokenizerConfig)
    except (OSError, *UNREADABLE):
        return None
    return found.chat_template if isinstance(found.chat_template, str) else None


def _load(rows: Sequence[ResolvedPlugin], directory: str | None) -> list[tuple[str, Resolver]]:
    """Return the resolvers by name. Raises PluginError."""
    table = PluginTable(rows)
    context = LoadContext(options={"directory": directory})
    return [(row.name, table.load("resolver", row.name, context)) for row in rows]
