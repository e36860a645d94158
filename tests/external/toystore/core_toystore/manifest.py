"""Manifest of the loader `toystore`: references such as toystore://bucket/model."""

from typing import Annotated

import msgspec

from core.plugin.hookspecs import PluginSpec, hookimpl
from core_runtime.specs.checkpoint import FileFacts

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Where the store is."""

    root: Annotated[str, msgspec.Meta(description="The store: a folder that plays its part.")] = "/var/lib/toystore"
    cache: Annotated[str, msgspec.Meta(description="Folder for the tokenizer's files.")] = "/tmp/toystore-cache"
    log: Annotated[str, msgspec.Meta(description="File to which every request is appended; empty: none.")] = ""


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="toystore", summary="toystore://bucket/model, read by ranges", arguments=Arguments)


@hookimpl
def core_claim(facts):
    """References with the store's scheme."""
    mine = isinstance(facts, FileFacts) and facts.ref.startswith("toystore://")
    return "its scheme is toystore" if mine else None


@hookimpl
def core_load(context):
    """Build the loader."""
    from core_toystore.loader import ToystoreLoader
    from core_toystore.store import Store

    arguments = context.arguments or Arguments()
    return ToystoreLoader(Store(arguments.root, arguments.log), arguments.cache)
