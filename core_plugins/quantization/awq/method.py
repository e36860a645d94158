"""The method of AWQ checkpoints: which module is packed.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from core.plugin.hookspecs import LoadContext
from core_plugins.quantization.awq.declaration import Declaration
from core_plugins.quantization.awq.layout import AWQLayout
from core_plugins.quantization.declared.arguments import DeclaredArguments, chosen_activation
from core_plugins.quantization.declared.groups import ACTIVATIONS
from core_plugins.quantization.declared.method import DeclaredMethod
from core_plugins.quantization.declared.part import StoredPart

PACKED = "qweight"
"""A module that has this tensor is packed, whatever lists of modules say."""


def awq_method(context: LoadContext) -> DeclaredMethod:
    """Raises UserError for a declaration or arguments that are not served."""
    assert context.manifest is not None and context.facts is not None, "only declared checkpoints are loaded"
    declaration = Declaration.read(context.facts.declaration)
    arguments = context.arguments or DeclaredArguments()
    activation = chosen_activation("awq", arguments.activation, ACTIVATIONS, context.dtype)
    layout = AWQLayout(declaration.group_size, declaration.version, activation)

    def choose(part: StoredPart) -> AWQLayout | None:
        return layout if PACKED in part.tensors else None

    return DeclaredMethod(context.manifest, choose)
