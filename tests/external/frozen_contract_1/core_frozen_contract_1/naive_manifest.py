"""Manifest of `frozen_naive`: attention written as the formula says."""

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is and what it cannot do."""
    return PluginSpec(
        name="frozen_naive",
        summary="softmax(q k) v, one token after the other",
        capabilities={"kv_dtypes": ["float32"], "cap": False, "block_sizes": [4, 8, 16]},
        priority=-10,
    )


@hookimpl
def core_load(context):
    """Build the backend."""
    from core_frozen_contract_1.naive import NaiveAttention

    return NaiveAttention()
