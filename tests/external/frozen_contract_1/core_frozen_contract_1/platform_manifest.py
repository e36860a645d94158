"""Manifest of `frozen_cpu`: a platform that runs the reference operations."""

from core.plugin.hookspecs import Device, PluginSpec, Probe, Proposal, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is; never chosen by itself before others."""
    return PluginSpec(name="frozen_cpu", summary="reference operations on the processor", priority=-100)


@hookimpl
def core_probe():
    """Two devices, so that an index can be asked for."""
    return Probe(tuple(Device(f"frozen_cpu:{index}", "the processor", 1 << 30) for index in range(2)))


@hookimpl
def core_propose(view):
    """Plain precision and a small cache."""
    return {
        "dtype": Proposal("float32", "the reference has no reason to round"),
        "kv_cache_memory_bytes": Proposal(4 << 20, "an example"),
        "block_size": Proposal(8, "an example"),
    }


@hookimpl
def core_load(context):
    """Build the platform."""
    from core_frozen_contract_1.platform import ExamplePlatform

    return ExamplePlatform()
