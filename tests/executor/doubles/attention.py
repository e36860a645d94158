"""The attention backend of the doubles, in a file of its own: it is given with `plugins=`."""

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1
KIND = "attention"


@hookimpl
def core_spec():
    """Say what the plugin is: torch_sdpa, by query."""
    return PluginSpec(
        name="double_attention",
        summary="torch_sdpa as the doubles see it",
        capabilities={"padding": True, "reference_numerics": True, "batch_invariant": False},
        priority=-100,
    )


@hookimpl
def core_load(context):
    """Build the backend that fits the device."""
    from core.testing.async_device import FakeAsyncAttention
    from core.testing.fake_device import FakeCalls
    from core.testing.graph_runtime import FakeGraphAttention, GraphCalls
    from core_plugins.attention.torch_sdpa.backend import TorchSDPA

    calls = context.kernels.calls
    double = FakeGraphAttention if isinstance(calls, GraphCalls | FakeCalls) else FakeAsyncAttention
    return double(TorchSDPA(by_query=True), context.kernels)
