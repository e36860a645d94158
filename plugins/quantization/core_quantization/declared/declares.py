"""Checks that a checkpoint declares a method in a form that is served.

Owns: the answers that the manifests of methods have in common. Never does: know a method. Torch-free.
Called by: manifests and methods of declared checkpoints.

A manifest imports the reader of its declarations only for a checkpoint with one, because every start queries every
manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.api.errors import UserError
from core.api.reason import Reason
from core.plugin.hookspecs import LoadContext
from core_quantization.declared.refusal import Refusal
from core_runtime.specs.checkpoint import CheckpointManifest


def undeclared(method: str) -> list[Reason]:
    """Return the reason against a checkpoint without a declaration."""
    return [Reason("checkpoint", f"one that declares {method}", "none", "leave --quantization out")]


def refusals(read: Callable[[Any], object], declaration: Any) -> list[Reason]:
    """Return the reasons why a declaration is not served; empty: it is. read: its reader, which raises Refusal."""
    try:
        read(declaration)
    except Refusal as refusal:
        return [refusal.reason]
    return []


def declaring(context: LoadContext, method: str) -> CheckpointManifest:
    """Return the checkpoint for which a method is loaded. Raises UserError where there is none."""
    manifest: CheckpointManifest | None = context.manifest
    if manifest is None:
        raise UserError(f"quantization '{method}' was given no checkpoint; leave --quantization out.")
    return manifest
