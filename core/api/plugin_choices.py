"""The plugins that an engine consists of: a part of the resolved configuration.

Owns: which plugin serves what, and the table that processes load them from. Never does: choose, or load. Called by:
`core.api.config`, where everybody takes them from.
"""

from __future__ import annotations

from typing import Any

import msgspec


class ResolvedPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table that child processes load from, exactly.

    target:  `module:attribute`, or `file:PATH` with `sha256`.
    """

    kind: str
    name: str
    target: str
    distribution: str = ""
    version: str = ""
    sha256: str = ""


class PluginChoices(msgspec.Struct, frozen=True, kw_only=True):
    """Which plugin serves what, and with which arguments.

    kernels:   kernel providers in order of preference.
    attention: backend for each layer kind (`full`, `sliding`, ...).
    model:     family that reads the configuration; None: the engine's own table.
    grammars:  backends of structured outputs, in the order in which they are asked.
    logits_processors: in the order in which they run: names of plugins, and import paths (`module:Class`).
    executor:  what computes the steps; empty in choices that no engine is built from by themselves.
    arguments: by (kind + "." + name): the plugin's own arguments as plain values.
    kv_connectors: in the order in which they are asked for pages.
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
