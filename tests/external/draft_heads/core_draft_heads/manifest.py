"""Manifest of the proposer `draft_heads` (Cai et al. 2024, arXiv 2401.10774, without its tree)."""

from typing import Annotated

import msgspec

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Where the heads are."""

    weights: Annotated[str, msgspec.Meta(description="A safetensors file with head.0, head.1, ...: [H, H] each.")]


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="draft_heads", summary="one small matrix for each draft position", arguments=Arguments)


@hookimpl
def core_load(context):
    """Build the proposer."""
    from core_draft_heads.proposer import DraftHeads

    return DraftHeads(context.arguments.weights, context.options)
