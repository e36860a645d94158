"""The plugins that an engine consists of: a part of the resolved configuration.

Owns: the plugin chosen for each task, and the table from which processes load them. Never does: choose, or load. Called by:
`core.api.config`, from which all others import them.
"""

from __future__ import annotations

from typing import Any

import msgspec


class ResolvedPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table from which child processes load exactly the chosen plugins.

    target:  `module:attribute`, or `file:PATH` with `sha256`.
    """

    kind: str
    name: str
    target: str
    distribution: str = ""
    version: str = ""
    sha256: str = ""


class PluginChoices(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen plugins of an engine, with their arguments.

    kernels:   kernel providers in order of preference.
    attention: backend for each layer kind (`full`, `sliding`, ...).
    model:     family that reads the model's configuration; None: the engine's own table of families.
    grammars:  backends of structured outputs, in the order in which they are tried.
    logits_processors: names of plugins and import paths (`module:Class`), in the order in which they run.
    executor:  plugin that computes the steps; empty in choices from which no engine is built directly.
    arguments: the plugins' own arguments as plain values, by kind + "." + name.
    kv_connectors: connectors, in the order in which they are searched for pages; a second one of a plugin is `NAME#2`.
    table:     every plugin named above.
    """

    loader: str
    platform: str
    quantization: str | None = None
    kernels: tuple[str, ...] = ()
    attention: dict[str, str] = {}
    speculative: str | None = None
    model: str | None = None
    arguments: dict[str, dict[str, Any]] = {}
    table: tuple[ResolvedPlugin, ...] = ()
    grammars: tuple[str, ...] = ()
    logits_processors: tuple[str, ...] = ()
    executor: str = ""
    kv_connectors: tuple[str, ...] = ()
