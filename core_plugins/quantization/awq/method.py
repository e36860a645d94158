"""The method of AWQ checkpoints: which module is packed.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from core.plugin.hookspecs import LoadContext
from core_plugins.quantization.awq.declaration import Declaration
from core_plugins.quantization.awq.layout import AWQLayout
from core_plugins.quantization.declared.arguments import DeclaredArguments
from core_plugins.quantization.declared.declares import declaring
from core_plugins.quantization.declared.held import Run
from core_plugins.quantization.declared.method import DeclaredMethod
from core_plugins.quantization.declared.part import StoredPart

PACKED = "qweight"
"""A module with this tensor is packed, whatever the declaration's lists of modules say."""


def awq_method(context: LoadContext) -> DeclaredMethod:
    """Raises UserError for a declaration or arguments that are not served."""
    manifest = declaring(context, "awq")
    declaration = Declaration.read(manifest.facts().declaration)
    arguments = context.arguments or DeclaredArguments()
    run = Run.of(arguments.activation, context)
    layout = AWQLayout(run, declaration.group_size, declaration.version)

    def choose(part: StoredPart) -> AWQLayout | None:
        return layout if PACKED in part.tensors else None

    return DeclaredMethod(manifest, choose)
