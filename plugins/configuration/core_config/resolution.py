"""The outcome of resolving: the configuration, with an explanation of every value.

Owns: `Resolution`, and doing without a plugin that failed. Never does: resolve (it is given the way to do so again).
Called by: resolve (writes), the commands, `LLM` and the server (read).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core.api.config import EngineConfig, ResolvedPlugin
from core.api.errors import CoreError, PluginError
from core_config.isolation import way_out
from core_config.memory import MemoryPlan
from core_config.selection.ranking import Selection
from core_config.server_config import ServerConfig
from core_config.settings import Row
from core_runtime.specs.checkpoint import CheckpointManifest

logger = logging.getLogger("core_config.resolve")


@dataclass(frozen=True, slots=True)
class Resolution:
    """The outcome.

    engine:      what the engine is built from.
    server:      the HTTP server's own settings.
    manifest:    of the checkpoint.
    selections:  the choice of each stage, losers included.
    arguments:   {name: (value, origin, reason)}.
    warnings:    sentences for the user.
    memory:      bytes, by shapes alone.
    waivers:     what makes a request's tokens depend on its neighbours, a sentence each (see `core_config.waivers`).
    given:       the user's values, as they were given.
    numerics:    what results depend on, as the running engine reports it; None when a plugin tells only after loading.
    replaceable: chosen plugins that nobody named and that others can replace.
    again:       resolves the same without the plugin of an error.
    """

    engine: EngineConfig
    server: ServerConfig
    manifest: CheckpointManifest
    selections: list[Selection]
    arguments: dict[str, Row]
    warnings: list[str]
    memory: MemoryPlan
    waivers: list[str]
    given: dict[str, Any]
    numerics: str | None
    replaceable: set[ResolvedPlugin]
    again: Callable[[PluginError], Resolution]

    def without(self, error: PluginError) -> Resolution:
        """The same arguments, resolved again without the plugin that failed with `error`; a warning is logged.

        Raises PluginError, with the ways out, when that plugin was named, when nothing else can do its work, or when it is
        no plugin's failure.
        """
        if error.plugin is None:
            raise error
        if error.plugin in self.replaceable:
            with contextlib.suppress(CoreError):  # nothing else can do its work: the first error is the one to tell
                found = self.again(error)
                logger.warning("%s", found.warnings[0])
                return found
        raise PluginError(f"{error} {way_out(error.plugin)}", error.plugin) from error
