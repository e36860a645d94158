"""Manifest of the proposer `draft_heads` (Cai et al. 2024, arXiv 2401.10774, without its tree)."""

import json
from typing import Annotated

import msgspec

from core.api.errors import UserError
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
def core_weights_nbytes(arguments):
    """From the head of the file: where each tensor's bytes begin and end."""
    try:
        with open(arguments.weights, "rb") as file:
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return sum(info["data_offsets"][1] - info["data_offsets"][0] for name, info in head.items() if name[:2] != "__")
    except (OSError, ValueError, LookupError) as error:
        raise UserError(f"--speculative-config.weights {arguments.weights}: cannot be read: {error}.") from error


@hookimpl
def core_load(context):
    """Build the proposer."""
    from core_draft_heads.proposer import DraftHeads

    return DraftHeads(context.arguments.weights, context.options)
