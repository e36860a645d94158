"""Short manifests, for plugins that are fully described by a name, a summary and the object to build.

Owns: `manifest_of`. Never does: import a plugin before it is loaded, or depend on a kind.
Called by: manifests, our own and those of third parties; each still states its `CONTRACT`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from core.entry_points import named
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl


class ShortManifest(NamedTuple):
    """The two hooks of a manifest, to be assigned to names of the same spelling in its module."""

    core_spec: Callable[[], PluginSpec]
    core_load: Callable[[LoadContext], Any]


def manifest_of(
    name: str, summary: str, target: str, *, arguments: type[msgspec.Struct] | None = None
) -> ShortManifest:
    """Make the hooks of a plugin: `core_spec, core_load = manifest_of(...)`.

    target: `package.module:name` of a class or function that builds the plugin; imported when the plugin is loaded.
    arguments: Struct class of the plugin's own arguments. `target` is called with an instance; None: without arguments.
    """

    @hookimpl
    def core_spec() -> PluginSpec:
        """Describe the plugin by the given name, summary and arguments."""
        return PluginSpec(name=name, summary=summary, arguments=arguments)

    @hookimpl
    def core_load(context: LoadContext) -> Any:
        """Import `target` and call it with the plugin's arguments."""
        build = named(target)
        if arguments is None:
            return build()
        return build(context.arguments or arguments())

    return ShortManifest(core_spec, core_load)
