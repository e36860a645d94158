"""Whether a checkpoint declares a method in a form that is served.

Owns: the answers that the manifests of methods have in common. Never does: know a method. Torch-free.
Called by: manifests and methods of declared checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.api.checkpoint import CheckpointFacts, CheckpointManifest
from core.api.errors import UserError
from core.api.reason import Reason
from core.plugin.hookspecs import LoadContext
from core_plugins.quantization.declared.refusal import Refusal


def reasons_against(query: CheckpointFacts, method: str, read: Callable[[Any], object]) -> list[Reason]:
    """Reasons why a method cannot open a checkpoint; empty: it can. read: the declaration's reader, which raises Refusal."""
    if not query.declaration:
        return [Reason("checkpoint", f"one that declares {method}", "none", "leave --quantization out")]
    try:
        read(query.declaration)
    except Refusal as refusal:
        return [refusal.reason]
    return []


def declaring(context: LoadContext, method: str) -> CheckpointManifest:
    """The checkpoint that a method is loaded for. Raises UserError where there is none."""
    if context.manifest is None:
        raise UserError(f"quantization '{method}' was given no checkpoint; leave --quantization out.")
    return context.manifest
