"""`core kernels list`: which providers of kernels serve an operation on a device, best first.

Owns: the command's options and table. Never does: load a provider, or choose one for a model (`core config explain`
shows that). Called by: `core kernels`.
"""

from typing import Annotated

import msgspec

from core.api.specs import KernelQuery
from core.args.arg import Arg
from core.commands.tables import print_table
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core_commands.cli.own_options import refuse_rest, take_options
from core_config.selection import select_kernels, select_platform
from core_config.selection.reasons import device_type
from core_config.stages.forms import serves
from core_runtime.specs.operation_order import OPERATIONS, SPECIAL_OPERATIONS, TORCH


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command's own options."""

    device: Annotated[str | None, Arg("Device, such as cpu or cuda:0. Unset: the best one here.")] = None
    kernels: Annotated[list[str], Arg("Providers, best first, as of --kernels.", commas=True)] = msgspec.field(
        default_factory=lambda: ["auto"]
    )


def list_kernels(words: list[str]) -> int:
    """Print the table. Raises UserError for a device that is not there, ConfigError for other words."""
    options = take_options(ListOptions, words)
    refuse_rest("kernels list", words, ListOptions)
    registry = PluginRegistry()
    platform, device = select_platform(registry, options.device)
    package = platform.manifest.row.distribution
    choice = select_kernels(registry, device.name, options.kernels, package=package)
    providers = choice.manifests
    print(f"{device.name}: {', '.join([*choice.selection.chosen, TORCH[0]])}")
    rows = [
        [f"  {operation}", ", ".join([*serving(operation, providers, device.name), TORCH[0]])]
        for operation in (*OPERATIONS, *SPECIAL_OPERATIONS)
    ]
    print_table(("  operation", "computed by the first of"), rows)
    return 0


def serving(operation: str, providers: list[Manifest] | tuple[Manifest, ...], device: str) -> list[str]:
    """Return the names of the providers that serve an operation, in their order."""
    query = KernelQuery(operation, device_type(device))
    return [manifest.row.name for manifest in providers if serves(manifest, query)]
