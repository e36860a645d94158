"""The outcome of resolving: the configuration, with an explanation of every value.

Owns: `Resolution`, and the removal of a plugin that failed. Never does: resolve (it receives a function that resolves
again).
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
from core_config.layout_cost import LayoutCost
from core_config.selection.ranking import Selection
from core_config.served.server_config import ServerConfig
from core_config.stages.isolation import way_out
from core_config.stages.memory import MemoryPlan
from core_config.stages.operations import Computed
from core_config.stages.settings import Row
from core_config.token_work import TokenWork
from core_runtime.specs.checkpoint import CheckpointManifest

logger = logging.getLogger("core_config.resolve")


@dataclass(frozen=True, slots=True)
class Resolution:
    """The outcome of resolving.

    engine: config from which the engine is built.
    server: the HTTP server's own settings.
    manifest: manifest of the checkpoint.
    selections: the choice of each stage, rejected candidates included.
    arguments: {name: (value, origin, reason)}.
    warnings: sentences for the user.
    memory: the memory plan, from shapes alone.
    waivers: sentences about every reason for which a request's tokens depend on its neighbours (see
        `core_config.stages.waivers`).
    given: the user's values, as they were given.
    numerics: the numerics id, as the running engine reports it; None when a plugin knows it only after loading.
    replaceable: chosen plugins that the user did not name and that others can replace.
    again: function that resolves again without the plugin of an error.
    computed: function that asks the plugins who computes which operation.
    layout: what steps cost with several ranks or engines; None for one engine of one rank.
    work: function that adds up the work of one token; None for a model on transformers' modules.
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
    computed: Callable[[], list[Computed]]
    layout: LayoutCost | None
    work: Callable[[], TokenWork | None]

    def without(self, error: PluginError) -> Resolution:
        """Resolve the same arguments again without the plugin that failed with `error`, and log a warning.

        Raises PluginError, with the ways out, when the user named that plugin, when no other plugin can replace it, or
        when the error is not a plugin's.
        """
        if error.plugin is None:
            raise error
        if error.plugin in self.replaceable:
            with contextlib.suppress(CoreError):  # no other plugin can replace it: the first error is the one to report
                found = self.again(error)
                logger.warning("%s", found.warnings[0])
                return found
        raise PluginError(f"{error} {way_out(error.plugin)}", error.plugin) from error
