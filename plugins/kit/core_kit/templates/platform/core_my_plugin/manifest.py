"""Manifest of `my_plugin`. Every command reads it, so it imports no torch and no vendor library."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import Device, LoadContext, PlatformView, PluginSpec, Probe, Proposal, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What users write as `--platform-config.KEY`."""

    threads: Annotated[int, msgspec.Meta(ge=1, le=256, description="Compute threads.")] = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is. Activations between layers are float32 whatever the run's dtype."""
    return PluginSpec(
        name="my_plugin",
        summary="reference operations on the processor",
        arguments=Arguments,
        capabilities={"dtypes": ["float32", "bfloat16"], "activation_dtype": "float32"},
        priority=-100,
    )


@hookimpl
def core_probe() -> Probe:
    """Look for devices, in a helper process with a time limit; `unavailable` says why there are none."""
    return Probe((Device("my_plugin:0", "the processor", 1 << 30),))


@hookimpl
def core_propose(view: PlatformView) -> dict[str, Proposal]:
    """Wishes for arguments that the user left open."""
    return {
        "dtype": Proposal("float32", "the reference has no reason to round"),
        "block_size": Proposal(16, "little waste at a sequence's end"),
        "kv_cache_memory_bytes": Proposal(view.device.memory_bytes // 16, "a sixteenth of the memory"),
        "attention_backend": Proposal(["torch_sdpa"], "runs on any device that torch knows"),
    }


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the platform; torch and vendor libraries may be imported from here on."""
    from core_my_plugin.platform import MyPluginPlatform

    return MyPluginPlatform((context.arguments or Arguments()).threads)
