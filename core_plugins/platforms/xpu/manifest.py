"""Manifest of the `xpu` platform. Torch-free.

Owns: the platform's probe. Called by: `core.plugin`. Everything else is what the `cuda` platform does, with another row.
"""

from __future__ import annotations

from core.plugin.contracts import Platform
from core.plugin.hookspecs import LoadContext, PlatformView, PluginSpec, Probe, Proposal, hookimpl
from core_plugins.platforms.cuda.arguments import DeviceArguments
from core_plugins.platforms.cuda.manifest import CAPABILITIES, proposals

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="xpu",
        summary="Intel GPUs, through torch; it compiles, and has not been run on a device",
        arguments=DeviceArguments,
        capabilities=CAPABILITIES,
        priority=80,
    )


@hookimpl
def core_probe() -> Probe:
    """Ask the driver."""
    from core_plugins.platforms.xpu.driver import probe_driver

    return probe_driver()


@hookimpl
def core_propose(view: PlatformView) -> dict[str, Proposal]:
    """As for other GPUs."""
    return proposals(view)


@hookimpl
def core_load(context: LoadContext) -> Platform:
    """Build the platform."""
    from core_plugins.platforms.cuda.platform import MAKERS, DevicePlatform

    return DevicePlatform(MAKERS["xpu"], context.arguments or DeviceArguments())
