"""Short manifests, for plugins that a name, a summary and the object to build describe completely.

Owns: `manifest_of`. Never does: import a plugin before it is loaded, or know a kind.
Called by: manifests, our own and those of third parties; each of them still states its `CONTRACT`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from core.entry_points import named
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl


class ShortManifest(NamedTuple):
    """The two hooks of a manifest, to be assigned to these names in its module."""

    core_spec: Callable[[], PluginSpec]
    core_load: Callable[[LoadContext], Any]


def manifest_of(
    name: str, summary: str, target: str, *, arguments: type[msgspec.Struct] | None = None
) -> ShortManifest:
    """Make the hooks of a plugin: `core_spec, core_load = manifest_of(...)`.

    target: `package.module:name` of a class or function that builds the plugin; imported when the plugin is loaded.
    arguments: the plugin's own arguments, which `target` is called with; None: it is called without any.
    """

    @hookimpl
    def core_spec() -> PluginSpec:
        """Describe the plugin."""
        return PluginSpec(name=name, summary=summary, arguments=arguments)

    @hookimpl
    def core_load(context: LoadContext) -> Any:
        """Build the plugin's object."""
        build = named(target)
        if arguments is None:
            return build()
        return build(context.arguments or arguments())

    return ShortManifest(core_spec, core_load)
