"""Manifests of the methods of checkpoints that declare how they are packed. Torch-free.

Owns: their three hooks. Never does: know a method, or import one that the checkpoint does not declare, because every
start queries every manifest.
Called by: the manifests of these methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from core.api.reason import Reason
from core.entry_points import named
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_quantization.declared.arguments import DeclaredArguments
from core_quantization.declared.declares import declaring, refusals, undeclared
from core_runtime.specs.checkpoint import CheckpointFacts


class DeclaredManifest(NamedTuple):
    """The hooks of a manifest, to be assigned to these names in its module."""

    core_spec: Callable[[], PluginSpec]
    core_supports: Callable[[CheckpointFacts], list[Reason]]
    core_load: Callable[[LoadContext], Any]


def declared_manifest(name: str, summary: str, read: str, choose: str) -> DeclaredManifest:
    """Make the hooks of a method: `core_spec, core_supports, core_load = declared_manifest(...)`.

    read: `package.module:name` of the reader of a checkpoint's declaration; it raises Refusal for what is not served.
    choose: the same of a function of what `read` returns and a `Run`; it returns the `Choose` of a `DeclaredMethod`.
    """

    @hookimpl
    def core_spec() -> PluginSpec:
        """Describe the plugin: its name, summary and arguments."""
        return PluginSpec(name=name, summary=summary, arguments=DeclaredArguments)

    @hookimpl
    def core_supports(query: CheckpointFacts) -> list[Reason]:
        """Support only checkpoints that declare the method, in a form that is served."""
        if not query.declaration:
            return undeclared(name)
        return refusals(named(read), query.declaration)

    @hookimpl
    def core_load(context: LoadContext) -> Any:
        """Build the method. Raises UserError without a checkpoint, Refusal for a declaration that is not served."""
        from core_quantization.declared.method import DeclaredMethod
        from core_quantization.declared.part_format import Run

        manifest = declaring(context, name)
        declaration = named(read)(manifest.facts().declaration)
        arguments = context.arguments or DeclaredArguments()
        run = Run.of(arguments.activation, context)
        return DeclaredMethod(manifest, named(choose)(declaration, run))

    return DeclaredManifest(core_spec, core_supports, core_load)
