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
    from core_attention.torch_sdpa.backend import TorchSDPA
    from core_kit.devices.async_device import FakeAsyncAttention
    from core_kit.devices.fake_device import FakeCalls
    from core_kit.devices.graph_runtime import FakeGraphAttention, GraphCalls

    calls = context.kernels.calls
    double = FakeGraphAttention if isinstance(calls, GraphCalls | FakeCalls) else FakeAsyncAttention
    return double(TorchSDPA(by_query=True), context.kernels)
