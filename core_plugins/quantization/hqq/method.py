"""The method of HQQ checkpoints: which module has the layout.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from core.plugin.hookspecs import LoadContext
from core_plugins.quantization.declared.arguments import DeclaredArguments
from core_plugins.quantization.declared.declares import declaring
from core_plugins.quantization.declared.held import Run
from core_plugins.quantization.declared.method import DeclaredMethod
from core_plugins.quantization.declared.part import StoredPart
from core_plugins.quantization.hqq.declaration import check_declaration
from core_plugins.quantization.hqq.layout import PACKED, HQQLayout


def hqq_method(context: LoadContext) -> DeclaredMethod:
    """Raises UserError for a declaration or arguments that are not served."""
    manifest = declaring(context, "hqq")
    check_declaration(manifest.facts().declaration)
    arguments = context.arguments or DeclaredArguments()
    layout = HQQLayout(Run.of(arguments.activation, context))

    def choose(part: StoredPart) -> HQQLayout | None:
        return layout if PACKED in part.tensors else None

    return DeclaredMethod(manifest, choose)
