"""Manifest of the `keep` KV connector. Torch-free."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="keep", summary="blocks that outlive the engine in the server's memory (--keep-kv)")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector; without a file, in an engine that nobody restarts, it does nothing."""
    from core.kv.connector import KVConnector
    from core_kv_connectors.kept.connector import KeptBlocks
    from core_kv_connectors.kept.file import KeptFile

    config = context.config
    assert config is not None
    if config.kv_file is None:
        return KVConnector()
    return KeptBlocks(KeptFile.open(config.kv_file), context.options["fingerprint"], context.options["page_bytes"])
