"""The method of HQQ checkpoints: which module has the layout.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from core.api.errors import UserError
from core.plugin.hookspecs import LoadContext
from core_plugins.quantization.declared.arguments import DeclaredArguments
from core_plugins.quantization.declared.held import Run
from core_plugins.quantization.declared.method import DeclaredMethod
from core_plugins.quantization.declared.part import StoredPart
from core_plugins.quantization.hqq.declaration import check_declaration
from core_plugins.quantization.hqq.layout import PACKED, HQQLayout


def hqq_method(context: LoadContext) -> DeclaredMethod:
    """Raises UserError for a declaration or arguments that are not served."""
    if context.manifest is None:
        raise UserError("quantization 'hqq' was given no checkpoint; leave --quantization out.")
    check_declaration(context.manifest.facts().declaration)
    arguments = context.arguments or DeclaredArguments()
    layout = HQQLayout(Run(arguments.activation, context.dtype))

    def choose(part: StoredPart) -> HQQLayout | None:
        return layout if PACKED in part.tensors else None

    return DeclaredMethod(context.manifest, choose)
