"""Manifest of the `tiers` KV connector. Torch-free."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_kv_connectors.load_failure import LoadFailure

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of vLLM's OffloadingConnector that say which blocks are worth a page, and what happens without one."""

    store_threshold: Annotated[int, msgspec.Meta(description="number of requests that must have had a block", ge=0)] = 0
    offload_prompt_only: Annotated[
        bool, msgspec.Meta(description="whether blocks of answers are left out until they are part of a prompt")
    ] = False
    load_failure: LoadFailure = "recompute"


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="tiers",
        summary="evicted blocks in host memory and on disk (--kv-offloading-size, -disk-path)",
        arguments=Arguments,
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector from the engine's configuration."""
    from core_kv_connectors.tiers.local import LocalTiers

    config, own = context.config, context.arguments
    assert config is not None
    fingerprint, page_bytes = context.options["fingerprint"], context.options["page_bytes"]
    new_page = context.options.get("new_page")
    if own is None:
        return LocalTiers(config, fingerprint, page_bytes, new_page)
    if own.store_threshold > 1 or own.offload_prompt_only:
        from core_kv_connectors.tiers.filtered import FilteredTiers

        rule = {"store_threshold": own.store_threshold, "prompt_only": own.offload_prompt_only}
        made: LocalTiers = FilteredTiers(config, fingerprint, page_bytes, new_page, **rule)
    else:
        made = LocalTiers(config, fingerprint, page_bytes, new_page)
    made.fails_loads = own.load_failure == "fail"
    return made
